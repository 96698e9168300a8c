//! A renderer whose output is in the store. A task renders a tile of an image and puts its pixels
//! under the tile's key. What it puts follows from its arguments, so a tile that is rendered again
//! after a death is the same tile. The output outlasts the members that rendered it.
//!
//! Run it with `cargo run --release --example tiles -p outlast-tasks`.

mod support;

use outlast_tasks::{Cx, Options, Task};
use serde::{Deserialize, Serialize};

/// The image has as many tiles in each direction, and a tile as many pixels.
const TILES: u32 = 8;
const PIXELS: u32 = 24;

#[derive(Clone, Serialize, Deserialize)]
struct Tile {
    x: u32,
    y: u32,
}

impl Tile {
    fn key(&self) -> Vec<u8> {
        format!("tile/{}/{}", self.x, self.y).into_bytes()
    }

    /// The Mandelbrot set: how many steps each point takes to leave a circle, up to 255.
    fn render(&self) -> Vec<u8> {
        let place = |tile: u32, pixel: u32| f64::from(tile * PIXELS + pixel);
        let scale = 3.0 / f64::from(TILES * PIXELS);
        let pixel = |row: u32, column: u32| {
            let (a, b) = (place(self.x, column) * scale - 2.25, place(self.y, row) * scale - 1.5);
            let (mut x, mut y, mut steps) = (0.0f64, 0.0f64, 0);
            while x * x + y * y < 4.0 && steps < 255 {
                (x, y) = (x * x - y * y + a, 2.0 * x * y + b);
                steps += 1;
            }
            steps
        };
        (0..PIXELS).flat_map(|row| (0..PIXELS).map(move |column| pixel(row, column))).collect()
    }
}

impl Task for Tile {
    const NAME: &'static str = "tile";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        let pixels = self.render();
        // A panic is the task's result; a store without room ends the run with its message.
        cx.store().put(&self.key(), &pixels).expect("the store has room for the image");
        pixels.iter().map(|&pixel| u64::from(pixel)).sum()
    }
}

/// The whole image.
#[derive(Clone, Serialize, Deserialize)]
struct Image;

impl Task for Image {
    const NAME: &'static str = "image";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        let tiles: Vec<Tile> =
            (0..TILES * TILES).map(|index| Tile { x: index % TILES, y: index / TILES }).collect();
        cx.sum(&tiles)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    support::run_members(
        |tasks| {
            let light = tasks.run(Image)?;
            // Every survivor finds every tile, whichever member rendered it.
            let mut found = 0;
            for index in 0..TILES * TILES {
                let tile = Tile { x: index % TILES, y: index / TILES };
                let pixels = tasks.store().get(&tile.key())?.ok_or("a tile is missing")?;
                if pixels.bytes() != tile.render() {
                    return Err(
                        format!("tile {}, {} is not as it should be", tile.x, tile.y).into()
                    );
                }
                found += pixels.bytes().iter().map(|&pixel| u64::from(pixel)).sum::<u64>();
            }
            Ok((light, found))
        },
        Options::new().sums::<Tile>().task::<Image>(),
    )
}
