//! Power cuts: what was acknowledged is there, and what was not is whole or absent.
//!
//! A worker changes a store on an ext4 in a loop file and says what is done. It is stopped, and the loop file is
//! copied: the copy has what reached the disk, and nothing of the page cache above it. Mounted, it is the disk
//! of a machine that lost its power at that moment.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use infradev_store::{Access, Depth, LayerId, RootKind, Stack, Store};

use super::kills::{system, unmount};
use super::report::{Tally, note};
use super::scenes::{assert_whole, collect, commit};
use crate::support::{Need, Place, TASK, User, lacks, rounds, wait_until, work_directory};

const WORKER: &str = "INFRADEV_TEST_WORKER";

/// A store on a disk of its own, and a place to mount copies of that disk.
struct Disk {
    directory: tempfile::TempDir,
    cuts: std::cell::Cell<usize>,
}

impl Disk {
    fn new(megabytes: u64) -> Self {
        let directory = tempfile::tempdir_in(work_directory()).expect("a directory");
        let disk = Self { directory, cuts: Default::default() };
        for name in ["disk", "cut"] {
            fs::create_dir(disk.path(name)).expect("an own directory");
        }
        let image = disk.path("image");
        fs::File::create(&image).and_then(|file| file.set_len(megabytes << 20)).expect("room");
        system("mkfs.ext4", &["-q", "-m", "0", "-b", "4096", "-N", "8192", &image.display().to_string()]);
        disk.mount("image", "disk");
        disk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn mount(&self, image: &str, at: &str) {
        let (image, at) = (self.path(image).display().to_string(), self.path(at).display().to_string());
        system("mount", &["-o", "loop", &image, &at]);
    }

    /// Copies the disk as it is; the copy is of one moment, since nothing changed while it was made.
    fn cut(&self) {
        let read = || {
            let mut bytes = vec![];
            fs::File::open(self.path("image"))
                .and_then(|mut file| file.read_to_end(&mut bytes))
                .expect("a disk");
            bytes
        };
        let mut before = read();
        loop {
            let after = read();
            if before == after {
                break;
            }
            before = after;
        }
        // A file of its own: a loop device may outlive its mount for a moment, with the blocks of an earlier cut.
        self.cuts.set(self.cuts.get() + 1);
        fs::write(self.path(&self.copy()), before).expect("room");
        self.mount(&self.copy(), "cut");
    }

    fn copy(&self) -> String {
        format!("copy{}", self.cuts.get())
    }

    fn mend(&self) {
        unmount(&self.path("cut"));
        fs::remove_file(self.path(&self.copy())).expect("an own file");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for name in ["cut", "disk"] {
            let _best_effort =
                Command::new("umount").arg("--lazy").arg(self.path(name)).stderr(Stdio::null()).status();
        }
    }
}

/// Names what the worker does in round `number`.
fn layer_name(number: u64) -> String {
    format!("layer{number}")
}

fn contents(number: u64) -> Vec<Vec<u8>> {
    let content = |part: u64| {
        let size = [10, 900, 5000, 70_000, (1 << 20) + 5][(part + number) as usize % 5];
        let seed = blake3_like(number / 2 * 7 + part);
        seed.iter().copied().cycle().take(size).collect()
    };
    (0..4).map(content).collect()
}

/// Bytes that differ from number to number.
fn blake3_like(number: u64) -> [u8; 32] {
    *infradev_store::ObjectId::of(&number.to_le_bytes()).as_bytes()
}

/// Changes a store for ever, and says after each operation what is promised from now on.
#[test]
fn worker() {
    let Ok(root) = std::env::var(WORKER) else { return };
    let store = Store::open(Path::new(&root), Access::Write).expect("a store");
    let say = |text: String| {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush()).expect("the test listens");
    };
    for number in 0u64.. {
        let contents = contents(number);
        let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
        let lease = store.lease("root").expect("a lease");
        let layer = commit(&store, &layer_name(number), &contents).expect("a commit");
        say(format!("layer {number} {layer}"));
        assert_eq!(lease.hold(&[layer]).expect("held"), []);
        let pin = format!("pin{}", number % 7);
        say(format!("begin {pin}"));
        store.set_root(RootKind::Pin, &pin, &Stack::new(vec![layer])).expect("a root");
        say(format!("pin {pin} {layer}"));
        drop(lease);
        if number % 3 == 2 {
            let pin = format!("pin{}", (number + 2) % 7);
            say(format!("begin {pin}"));
            store.remove_root(RootKind::Pin, &pin).expect("an answer");
        }
        if number % 5 == 4 {
            say("collect".to_owned());
            collect(&store).expect("a collection");
            say("collected".to_owned());
        }
    }
}

/// What the worker promised so far.
#[derive(Debug, Default, Clone)]
struct Promises {
    pins: BTreeMap<String, LayerId>,
    /// Layers since the last collection began, which may take those that no pin has.
    layers: BTreeMap<u64, LayerId>,
}

impl Promises {
    /// What both promise.
    fn and(mut self, other: &Self) -> Self {
        self.pins.retain(|pin, layer| other.pins.get(pin) == Some(layer));
        self.layers.retain(|number, layer| other.layers.get(number) == Some(layer));
        self
    }

    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["begin", pin] => drop(self.pins.remove(*pin)),
            ["pin", pin, layer] => drop(self.pins.insert((*pin).to_owned(), layer.parse().expect("an id"))),
            ["layer", number, layer] => {
                let number = number.parse().expect("a number");
                self.layers.insert(number, layer.parse().expect("an id"));
            }
            ["collect"] => self.layers.clear(),
            _ => {}
        }
    }
}

fn start(root: &Path) -> (Child, Arc<Mutex<Promises>>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "store::power::worker", "--nocapture"]).env(WORKER, root);
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("it starts");
    let promises = Arc::new(Mutex::new(Promises::default()));
    let (heard, out) = (Arc::clone(&promises), child.stdout.take().expect("a pipe"));
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            heard.lock().expect("no panic").hear(&line);
        }
    });
    (child, promises)
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("it lives");
}

#[test]
fn privileged_a_power_cut_takes_nothing_that_was_promised() {
    if lacks(Need::Root) || lacks(Need::Program("mkfs.ext4")) {
        return;
    }
    let mut tally = Tally::new("power cut of a store that commits, pins, unpins and collects");
    let mut promised = 0;
    let per_disk = rounds(4, 20);
    for _ in 0..rounds(1, 6) {
        let disk = Disk::new(96);
        let (mut child, promises) = start(&disk.path("disk/store"));
        for round in 0..per_disk {
            std::thread::sleep(Duration::from_millis(((round * 61 + 37) % 190) as u64));
            let before = promises.lock().expect("no panic").clone();
            signal(&child, rustix::process::Signal::STOP);
            // What was promised before the worker was stopped and not taken back by then; it says what it begins.
            std::thread::sleep(Duration::from_millis(20));
            let promises = before.and(&promises.lock().expect("no panic"));
            disk.cut();
            signal(&child, rustix::process::Signal::CONT);
            check(&disk.path("cut/store"), &promises);
            promised += promises.pins.len() + promises.layers.len();
            disk.mend();
            tally.add();
        }
        child.kill().expect("a child");
        child.wait().expect("a child");
    }
    assert!(promised > 0, "nothing was promised in {} cuts", tally.cases());
    note(tally);
}

/// Asserts that a disk after a power cut keeps what was promised, and that work goes on without help.
fn check(root: &Path, promises: &Promises) {
    if promises.pins.is_empty() && promises.layers.is_empty() && !root.exists() {
        return;
    }
    let store = Store::open(root, Access::Write).expect("it opens");
    let report = store.verify(Depth::ReadData, &()).expect("a report");
    assert!(report.damage.is_empty() && report.unchecked.is_empty(), "{report:?}");
    for (number, layer) in &promises.layers {
        assert!(store.has_layer(layer), "layer {number} was committed and is gone");
    }
    for (pin, layer) in &promises.pins {
        let root: Option<Stack> = store.root(RootKind::Pin, pin).expect("a readable root");
        assert_eq!(root.map(|root| root.layers), Some(vec![*layer]), "{pin}");
        assert!(store.has_layer(layer), "{pin}");
    }
    let layer = commit(&store, "after", &[b"after the power cut"]).expect("a commit");
    assert!(store.has_layer(&layer));
    collect(&store).expect("a collection");
    assert_whole(&store);
}

#[test]
fn privileged_a_power_cut_during_a_build_is_completed_by_the_next() {
    if lacks(Need::Root) || lacks(Need::Program("mkfs.ext4")) {
        return;
    }
    let place = Place::new(User::Caller);
    let mut tally = Tally::new("power cut of the program: build, mount, exec --keep, gc");
    for _ in 0..rounds(1, 8) {
        let disk = Disk::new(64);
        let store = disk.path("disk/store").display().to_string();
        let script = format!(
            "while :; do \
             $0 --store {store} build {TASK} demo/two; $0 --store {store} env mount {TASK} --name mine; \
             $0 --store {store} env exec mine -- sh -c 'echo x >made'; $0 --store {store} env rm mine; \
             $0 --store {store} rm demo/two; $0 --store {store} gc; done"
        );
        let mut shell = place.tool("sh");
        shell.args(["-c", &script]).arg(place.program()).stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        let mut child = shell.spawn().expect("it starts");
        let group = rustix::process::Pid::from_child(&child);
        for round in 0..rounds(3, 6) {
            std::thread::sleep(Duration::from_millis((300 + round * 457 % 1300) as u64));
            rustix::process::kill_process_group(group, rustix::process::Signal::STOP).expect("it lives");
            disk.cut();
            rustix::process::kill_process_group(group, rustix::process::Signal::CONT).expect("it lives");
            let cut = disk.path("cut/store").display().to_string();
            for command in [
                &["build", TASK][..],
                &["verify", "--read-data"],
                &["env", "exec", TASK, "--", "tool"],
                &["gc"],
                &["verify", "--read-data"],
            ] {
                let finished = place.run(&[&["--store", &cut], command].concat());
                assert_eq!(finished.status, 0, "{command:?}: {}{}", finished.stdout, finished.stderr);
            }
            disk.mend();
            tally.add();
        }
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("it lives");
        child.wait().expect("a child");
        wait_until("what it had started is gone", || place.processes().is_empty());
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a proc");
        for line in mounts.lines().filter(|line| line.contains(&format!("{store}/envs"))) {
            let _best_effort =
                Command::new("umount").arg(line.split(' ').nth(4).expect("a mount point")).status();
        }
    }
    note(tally);
}
