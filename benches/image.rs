//! How long does it take to merge a stack and to make its image, for few layers and for many?
//!
//! `cargo bench --bench image -- STORE TASK [ROUNDS]` takes the layers of a built task from a store, puts the same
//! entries into 10 and into 400 layers, and does what the first mount of a stack does: decompress, check and decode
//! every layer, merge, write the image and sync it. Nothing of the store changes.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use infradev::build::root::BuiltTask;
use infradev_layers::{Tree, TreeBuilder, merge, write_image};
use infradev_store::{Access, LayerId, Store};
use rayon::prelude::*;

/// A layer as it lies in a store.
struct Stored {
    id: LayerId,
    compressed: Vec<u8>,
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (Some(root), Some(task)) = (arguments.next(), arguments.next()) else {
        say("usage: cargo bench --bench image -- STORE TASK [ROUNDS]");
        return;
    };
    let rounds = arguments.next().map_or(20, |rounds| rounds.parse().expect("a number of rounds"));
    let store = Store::open(Path::new(&root), Access::Read).expect("a store");
    let built = BuiltTask::readable(&store).into_iter().find(|built| built.task == task);
    let layers: Vec<Tree> =
        built.expect("a task that is built in the store").layers.iter().map(|id| read(&store, id)).collect();
    say(&format!(
        "{:>6} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "layers", "entries", "decode", "merge", "image", "all", "p99"
    ));
    let mut counts = vec![10, layers.len(), 400];
    counts.sort_unstable();
    for count in counts {
        measure(&regrouped(&layers, count), rounds);
    }
}

fn read(store: &Store, id: &LayerId) -> Tree {
    Tree::decode(&store.layer(id).expect("a layer")).expect("a tree")
}

/// Puts the entries of a stack into `count` layers: neighbours merged, or the largest ones split.
fn regrouped(layers: &[Tree], count: usize) -> Vec<Stored> {
    let groups: Vec<Tree> = if count <= layers.len() {
        (0..count)
            .map(|number| merge(&layers[number * layers.len() / count..(number + 1) * layers.len() / count]))
            .collect()
    } else {
        let mut groups = layers.to_vec();
        while groups.len() < count {
            let largest = (0..groups.len()).max_by_key(|&at| groups[at].entries().len()).expect("layers");
            let (left, right) = halves(&groups[largest]);
            groups.splice(largest..=largest, [left, right]);
        }
        groups
    };
    let stored = |tree: &Tree| {
        let encoding = tree.encode();
        let compressed = zstd::bulk::compress(&encoding, 3).expect("memory");
        Stored { id: LayerId::of(&encoding), compressed }
    };
    groups.iter().map(stored).collect()
}

/// Splits a layer in its middle; hardlinks follow the file that they name.
fn halves(tree: &Tree) -> (Tree, Tree) {
    let middle = tree.entries().len() / 2;
    let mut halves = [TreeBuilder::new(), TreeBuilder::new()];
    for (number, entry) in tree.entries().iter().enumerate() {
        let place = match &entry.kind {
            infradev_layers::Kind::Hardlink { first } => tree.position(first).expect("a tree is complete"),
            _ => number,
        };
        halves[usize::from(place >= middle)]
            .add(entry.path.clone(), entry.kind.clone())
            .expect("a part of a tree");
    }
    let [left, right] = halves.map(|half| half.finish().expect("a part of a tree"));
    (left, right)
}

fn measure(layers: &[Stored], rounds: usize) {
    let mut times: Vec<[Duration; 4]> = vec![];
    let mut entries = 0;
    for _ in 0..=rounds {
        let began = Instant::now();
        let trees: Vec<Tree> = layers.par_iter().map(decode).collect();
        let decoded = began.elapsed();
        let merged = merge(&trees);
        let merging = began.elapsed();
        let mut file =
            std::io::BufWriter::with_capacity(1 << 20, tempfile::tempfile_in("/var/tmp").expect("a file"));
        write_image(&merged, &mut file).expect("an image");
        file.flush().expect("a disk");
        file.get_ref().sync_all().expect("a disk");
        let all = began.elapsed();
        drop((trees, file));
        entries = merged.entries().len();
        times.push([decoded, merging - decoded, all - merging, all]);
    }
    // The first is not counted: memory is new.
    times.remove(0);
    let column = |number: usize| {
        let mut column: Vec<f64> = times.iter().map(|row| row[number].as_secs_f64() * 1e3).collect();
        column.sort_by(f64::total_cmp);
        column
    };
    let medians: String = (0..4).map(|number| format!(" {:>6.0} ms", column(number)[rounds / 2])).collect();
    let slowest = column(3)[(rounds * 99).div_ceil(100) - 1];
    say(&format!("{:>6} {entries:>8}{medians} {slowest:>6.0} ms", layers.len()));
}

fn decode(layer: &Stored) -> Tree {
    let mut encoding = vec![];
    zstd::stream::copy_decode(&*layer.compressed, &mut encoding).expect("it was compressed above");
    assert_eq!(LayerId::of(&encoding), layer.id);
    Tree::decode(&encoding).expect("it was encoded above")
}

#[expect(clippy::print_stdout, reason = "a bench is read on a terminal")]
fn say(line: &str) {
    println!("{line}");
}
