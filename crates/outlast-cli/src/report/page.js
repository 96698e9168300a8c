"use strict";
// Shows the value under the pointer: the text of a mark, or the values of a figure at a place.
(() => {
  const tip = document.getElementById("tip");
  const hide = () => {
    tip.hidden = true;
    document.querySelectorAll(".cross").forEach((line) => { line.style.visibility = "hidden"; });
  };
  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const room = document.documentElement.clientWidth - width - 8;
    tip.style.left = Math.max(8, Math.min(event.clientX + 14, room)) + "px";
    const above = event.clientY - height - 12;
    tip.style.top = (above > 4 ? above : event.clientY + 16) + "px";
  };
  const at = (target, event) => {
    const { from, to, unit, lines } = JSON.parse(target.dataset.values);
    const box = target.getBoundingClientRect();
    const part = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.999999);
    const cross = target.parentNode.querySelector(".cross");
    if (cross) {
      cross.setAttribute("x1", part * 100 + "%");
      cross.setAttribute("x2", part * 100 + "%");
      cross.style.visibility = "visible";
    }
    const head = (from + (to - from) * part).toPrecision(4) + " " + unit;
    const rows = lines.map(([name, values, of]) =>
      name + ": " + values[Math.floor(part * values.length)].toLocaleString("en") + " " + of);
    return [head, ...rows].join("\n");
  };
  const react = (event) => {
    const target = event.target.closest && event.target.closest("[data-tip], [data-values]");
    hide();
    if (target) show(target.dataset.tip || at(target, event), event);
  };
  document.addEventListener("pointermove", react);
  document.addEventListener("pointerdown", react);
  document.addEventListener("pointerleave", hide);
  document.addEventListener("scroll", hide, { passive: true });
})();
