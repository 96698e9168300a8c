(() => {
  const figure = document.querySelector('.lanes'), tip = document.getElementById('tip');
  const at = figure.querySelector('.at'), data = JSON.parse(figure.dataset.lanes);
  const { left, width, top, step, seconds } = data;
  const hide = () => { tip.style.visibility = at.style.visibility = 'hidden'; };
  const show = event => {
    const matrix = figure.getScreenCTM().inverse();
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix);
    const part = (point.x - left) / width, lane = Math.floor((point.y - top) / step);
    if (part < 0 || part >= 1 || lane < 0 || lane >= data.lanes.length) return hide();
    const { name, bins, died } = data.lanes[lane], time = part * seconds;
    const [run, again] = bins[Math.floor(part * bins.length)];
    const lines = [`${name} at ${time.toFixed(3)} s`];
    if (died !== null && time > died) lines.push(`dead since ${died.toFixed(3)} s`);
    else {
      lines.push(`runs tasks: ${run} %`);
      if (again) lines.push(`runs tasks of the dead: ${again} %`);
      lines.push(`waits: ${100 - run - again} %`);
    }
    const move = event.target.closest('.move');
    if (move) lines.push(move.dataset.text);
    tip.replaceChildren(...lines.flatMap(line => [line, document.createElement('br')]));
    const right = event.clientX > innerWidth - 280;
    tip.style.left = right ? '' : `${event.clientX + 14}px`;
    tip.style.right = right ? `${innerWidth - event.clientX + 14}px` : '';
    tip.style.top = `${event.clientY + 14}px`;
    at.setAttribute('x1', point.x);
    at.setAttribute('x2', point.x);
    tip.style.visibility = at.style.visibility = 'visible';
  };
  figure.addEventListener('pointermove', show);
  figure.addEventListener('pointerdown', show);
  figure.addEventListener('pointerleave', hide);
})();
