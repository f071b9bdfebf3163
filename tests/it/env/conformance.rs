//! What an environment is, as one list of behaviours, on every back end that this kernel allows, as root and not.
//!
//! A behaviour is a shell script that runs in a fresh environment, with what it must print and what `env diff`
//! must say afterwards. What was written must also be the same layer, id for id, on every back end. Known
//! differences are in `docs/sandbox.md`; a behaviour that is missing here is promised nowhere.

use super::for_each_user;
use crate::support::{Need, Place, TASK, User, lacks};

const BACK_ENDS: [&str; 4] = ["erofs", "stub", "farm", "copy"];

/// Makes files of every kind below /workspace/demo/case, as a build step.
const CASE: &str = r#"
import os
def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, 'w').write(text)
    os.chmod(path, mode)
for path in ('d/f', 'd/sub/deep/x', 'd/sub/y', 'e/y', 'space in name', 'was/a directory'):
    write('case/' + path, path + '\n')
write('case/d/secret', 'secret\n', 0o600)
write('case/d/run', '#!/bin/sh\necho ran\n', 0o755)
write('case/d/sticky', 'sticky\n', 0o1777)
write('case/d/read-only', 'read-only\n', 0o444)
for name in ('same', 'twin'):
    write('case/d/' + name, 'equal\n')
write('case/d/other', 'equal\n', 0o640)
write('case/empty', '')
write('case/big', 'x' * (2 << 20))
write('case/h/one', 'linked\n')
os.link('case/h/one', 'case/h/two')
os.symlink('f', 'case/d/link')
os.symlink('nowhere', 'case/d/dangling')
write('case/noted', 'noted\n')
os.setxattr('case/noted', 'user.note', b'a note')
"#;

/// Lists everything that must be identical: path, kind, mode, size, time, attributes, target, content, hardlinks.
pub(super) const LIST: &str = r#"
import hashlib, os, stat
rows, groups = {}, {}
for top in ('/opt/env', '/workspace'):
    for directory, names, files in os.walk(top):
        for path in [directory] + [os.path.join(directory, name) for name in names + files]:
            info = os.lstat(path)
            kind = stat.S_IFMT(info.st_mode)
            row = rows[path] = [oct(info.st_mode), info.st_uid, info.st_size if kind != stat.S_IFDIR else 0, info.st_mtime]
            if kind == stat.S_IFLNK:
                row.append(os.readlink(path))
            if kind == stat.S_IFREG:
                row.append(hashlib.sha256(open(path, 'rb').read()).hexdigest())
                row.append(sorted((x, os.getxattr(path, x)) for x in os.listxattr(path)))
                groups.setdefault((info.st_dev, info.st_ino), set()).add(path)
for group in groups.values():
    for path in group:
        rows[path].append(sorted(group))
for path in sorted(rows):
    print(path, rows[path])
"#;

struct Behaviour {
    name: &'static str,
    /// Runs in /workspace/demo/case.
    script: &'static str,
    prints: &'static str,
    /// What `env diff` says, below /workspace/demo/case.
    diff: &'static str,
}

const fn behaviour(
    name: &'static str,
    script: &'static str,
    prints: &'static str,
    diff: &'static str,
) -> Behaviour {
    Behaviour { name, script, prints, diff }
}

const LIST_OF_BEHAVIOURS: &[Behaviour] = &[
    behaviour(
        "modes, times and attributes are the layer's",
        "stat -c '%a %Y %h' d/run d/secret d/sticky d/read-only empty | cut -d ' ' -f 1,2; d/run; \
         python -c 'import os; print(os.getxattr(\"noted\", \"user.note\"), os.listxattr(\"d/f\"))'",
        "755 315532800\n600 315532800\n1777 315532800\n444 315532800\n644 315532800\nran\nb'a note' []\n",
        "",
    ),
    behaviour(
        "links are links, and equal files are not",
        "readlink d/link d/dangling; cat d/link; \
         [ h/one -ef h/two ] && echo linked; [ d/same -ef d/twin ] || [ d/same -ef d/other ] || echo apart",
        "f\nnowhere\nd/f\nlinked\napart\n",
        "",
    ),
    behaviour(
        "append",
        "echo more >>d/f; echo more >>d/secret; cat d/f d/link; stat -c %a d/secret",
        "d/f\nmore\nd/f\nmore\n600\n",
        "M d/f\nM d/secret\n",
    ),
    behaviour(
        "truncate",
        ": >d/f; truncate -s 3 big; stat -c %s d/f big; cat big",
        "0\n3\nxxx",
        "M big\nM d/f\n",
    ),
    behaviour(
        "a change of two equal files is one",
        "echo 1 >>d/same; cat d/twin d/other",
        "equal\nequal\n",
        "M d/same\n",
    ),
    behaviour(
        "chmod",
        "chmod 700 d/f d/sub; stat -c %a d/f d/sub; cat d/f",
        "700\n700\nd/f\n",
        "M d/f\nM d/sub\n",
    ),
    behaviour("chown to oneself", "chown 0:0 d/f d; stat -c '%u %g' d/f", "0 0\n", ""),
    behaviour("opened and not changed", ": >>d/f; exec 3<>big; cat d/f", "d/f\n", ""),
    behaviour(
        "times",
        "touch -d @1000000000 d/f empty; touch -h -d @1000000000 d/link; stat -c %Y d/f empty d/link",
        "1000000000\n1000000000\n1000000000\n",
        "M d/f\nM d/link\nM empty\n",
    ),
    behaviour(
        "attributes",
        "python -c 'import os; os.setxattr(\"noted\", \"user.note\", b\"2\"); os.setxattr(\"d/f\", \"user.x\", b\"1\"); \
         print(os.getxattr(\"noted\", \"user.note\"), os.listxattr(\"d/f\")); os.setxattr(\"d/sub\", \"user.x\", b\"d\")'",
        "b'2' ['user.x']\n",
        "M d/f\nM d/sub\nM noted\n",
    ),
    behaviour(
        "unlink",
        "rm d/f e/y; ls d e; cat d/link 2>/dev/null || echo gone",
        "d:\ndangling\nlink\nother\nread-only\nrun\nsame\nsecret\nsticky\nsub\ntwin\n\ne:\ngone\n",
        "D d/f\nD e/y\n",
    ),
    behaviour(
        "unlink and recreate",
        "rm d/f; echo new >d/f; cat d/f; rm d/run; mkdir d/run; echo in >d/run/x; cat d/run/x",
        "new\nin\n",
        "M d/f\nM d/run\nA d/run/x\n",
    ),
    behaviour("unlink and recreate alike", "cp -p d/f keep; rm d/f; mv keep d/f; cat d/f", "d/f\n", ""),
    behaviour("remove a tree", "rm -r d was; ls", "big\ne\nempty\nh\nnoted\nspace in name\n", "D d\nD was\n"),
    behaviour(
        "remove a tree and recreate it",
        "rm -r d; mkdir d; ls d; echo new >d/new; ls d; cat d/f 2>/dev/null || echo gone",
        "new\ngone\n",
        "D d/dangling\nD d/f\nD d/link\nA d/new\nD d/other\nD d/read-only\nD d/run\nD d/same\nD d/secret\n\
         D d/sticky\nD d/sub\nD d/twin\n",
    ),
    behaviour(
        "a file for a directory, a directory for a file",
        "rm -r was; echo now >was; rm d/f; mkdir -p d/f/below; ls -d d/f/below; cat was",
        "d/f/below\nnow\n",
        "M d/f\nA d/f/below\nM was\n",
    ),
    behaviour(
        "rename a file",
        "mv d/f d/g; mv 'space in name' e/; cat d/g 'e/space in name'; ls d/f 2>/dev/null || echo gone",
        "d/f\nspace in name\ngone\n",
        "D d/f\nA d/g\nA e/space in name\nD space in name\n",
    ),
    behaviour(
        "rename over a file",
        "mv d/f d/run; cat d/run; [ -e d/f ] || echo gone",
        "d/f\ngone\n",
        "D d/f\nM d/run\n",
    ),
    behaviour(
        "rename a directory",
        "mv d/sub moved; find moved | sort; cat moved/deep/x; [ -e d/sub ] || echo gone",
        "moved\nmoved/deep\nmoved/deep/x\nmoved/y\nd/sub/deep/x\ngone\n",
        "D d/sub\nA moved\nA moved/deep\nA moved/deep/x\nA moved/y\n",
    ),
    behaviour(
        "new hardlinks",
        "ln d/f d/f2; echo more >>d/f2; cat d/f; [ d/f -ef d/f2 ] && echo linked; rm h/one; cat h/two",
        "d/f\nmore\nlinked\nlinked\n",
        "M d/f\nA d/f2\nD h/one\n",
    ),
    behaviour(
        "symlinks",
        "ln -sf run d/link; rm d/dangling; ln -s f d/f2; cat d/f2; readlink d/link",
        "d/f\nrun\n",
        "D d/dangling\nA d/f2\nM d/link\n",
    ),
    behaviour(
        "new files of every size",
        "mkdir -p n/a; : >n/empty; echo x >n/a/x; chmod 500 n/a; cp big n/; cmp big n/big && du -a n | wc -l",
        "5\n",
        "A n\nA n/a\nA n/a/x\nA n/big\nA n/empty\n",
    ),
    behaviour(
        "what no layer can hold",
        "mkfifo n; mkfifo d/p; rm d/f; mkfifo d/f; [ -p n ] && echo fifo",
        "fifo\n",
        "D d/f\n",
    ),
    behaviour("no set-user-id", "cp d/run own; chmod 6755 own; ./own", "ran\n", "A own\n"),
];

/// Gives what was written one time, so that it is the same layer whenever it is written.
const ONE_TIME: &str = "find /workspace/demo/case -newermt 2002-01-01 -exec touch -h -d @1234567890 {} +";

/// Builds the task with [`CASE`], and calls `check` with each back end that works.
pub(super) fn for_each_back_end(check: impl Fn(&Place, &str)) {
    for user in [User::Caller, User::Ordinary] {
        if lacks(if user == User::Caller { Need::Sandbox } else { Need::UserNamespaces }) {
            continue;
        }
        let place = Place::new(user);
        build_case(&place);
        let working: Vec<&str> = BACK_ENDS.into_iter().filter(|back_end| works(&place, back_end)).collect();
        assert!(working.contains(&"copy") && working.len() > 1, "{user:?} has only {working:?}");
        for back_end in working {
            check(&place, back_end);
        }
        place.assert_whole();
    }
}

pub(super) fn build_case(place: &Place) {
    add_case(place);
    place.ok(&["build", TASK]);
}

/// Adds a step that makes [`CASE`] to the task.
fn add_case(place: &Place) {
    let toml = std::fs::read_to_string(place.path("catalog/demo/project.toml")).expect("a catalog");
    let step = format!(
        "\n[[build]]\nname = \"case\"\ncommand = [\"python\", \"-c\", '''{CASE}''']\n\
         inputs = [\"native/*.txt\"]\noutputs = [\"case/**\"]\n"
    );
    place.write("demo/project.toml", toml + &step);
}

pub(super) fn works(place: &Place, back_end: &str) -> bool {
    let doctor = place.run(&["--back-end", back_end, "doctor"]);
    if doctor.status != 0 {
        let refused =
            doctor.stdout.lines().find(|line| line.contains("back end")).unwrap_or_default().to_owned();
        #[expect(clippy::print_stderr, reason = "what is not checked is said")]
        {
            eprintln!("skipped: {refused}");
        }
    }
    doctor.status == 0
}

#[test]
fn privileged_every_back_end_does_what_the_list_says() {
    let layers = std::cell::RefCell::new(std::collections::BTreeMap::<&str, (String, String)>::new());
    for_each_back_end(|place, back_end| {
        let listed = place.ok(&["--back-end", back_end, "env", "exec", TASK, "--", "python", "-c", LIST]);
        assert!(listed.lines().count() > 50, "{listed}");
        let mut layers = layers.borrow_mut();
        let expected = layers.entry("the listing").or_insert_with(|| (listed.clone(), back_end.to_owned()));
        let (left, right) = (expected.0.lines(), listed.lines());
        for (left, right) in left.zip(right) {
            assert_eq!(left, right, "{} and {back_end}", expected.1);
        }
        for behaviour in LIST_OF_BEHAVIOURS {
            let what = format!("{} with {back_end}", behaviour.name);
            let script = format!("cd case\n{}", behaviour.script);
            let exec = ["--back-end", back_end, "env", "exec", "--keep", "one", TASK, "--", "sh", "-c"];
            assert_eq!(place.ok(&[&exec[..], &[&script]].concat()), behaviour.prints, "{what}");
            place.ok(&["env", "exec", "--workdir", "/", "one", "--", "sh", "-c", ONE_TIME]);
            let shown = place.ok(&["--json", "env", "diff", "one"]);
            let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            let changes = shown["changes"].as_array().expect("a list");
            let words: Vec<String> = changes
                .iter()
                .map(|change| {
                    let path = change["path"].as_str().expect("text");
                    let path = path.strip_prefix("/workspace/demo/case/").unwrap_or(path);
                    format!("{} {path}\n", change["change"].as_str().expect("text"))
                })
                .collect();
            let mut expected: Vec<&str> = behaviour.diff.split_inclusive('\n').collect();
            let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
            expected.sort_unstable();
            words.sort_unstable();
            assert_eq!(words, expected, "{what}");
            let layer = shown["layer"].as_str().expect("an id").to_owned();
            let first = layers.entry(behaviour.name).or_insert_with(|| (layer.clone(), back_end.to_owned()));
            assert_eq!(
                layer, first.0,
                "{}: {back_end} and {} wrote different layers",
                behaviour.name, first.1
            );
            place.ok(&["env", "rm", "one"]);
        }
    });
}

#[test]
fn privileged_a_build_makes_the_same_layers_by_every_back_end() {
    if lacks(Need::Sandbox) || lacks(Need::UserNamespaces) {
        return;
    }
    // One wheel, one commit, one step: one id, whoever builds it and however.
    let mut first: Option<Vec<String>> = None;
    for (user, back_end) in [
        (User::Caller, None),
        (User::Caller, Some("copy")),
        (User::Ordinary, Some("farm")),
        (User::Ordinary, None),
    ] {
        let place = Place::new(user);
        add_case(&place);
        place.ok(&[&back_end.map_or(vec![], |word| vec!["--back-end", word])[..], &["build", TASK]].concat());
        let layers = place.listing("layers");
        assert!(layers.len() > 4, "{layers:?}");
        assert_eq!(&layers, first.get_or_insert_with(|| layers.clone()), "{user:?} {back_end:?}");
    }
}

#[test]
fn privileged_back_ends_say_what_they_are() {
    for_each_back_end(|place, back_end| {
        let kept = place.run(&["--back-end", back_end, "env", "exec", "--keep", "one", TASK, "--", "true"]);
        assert_eq!(kept.stderr.contains("is a full copy"), back_end == "copy", "{}", kept.stderr);
        let listed = place.ok(&["env", "ls"]);
        assert!(listed.contains(&format!(" {back_end} ")), "{listed}");
        // Mounted, it says so too; a named one stays what it is.
        let mounted = place.run(&["env", "mount", "one"]);
        assert_eq!(mounted.status, 0, "{}", mounted.stderr);
        let listed = place.ok(&["env", "ls"]);
        assert!(listed.contains(" mounted ") || listed.contains(" held "), "{listed}");
        place.ok(&["env", "rm", "one"]);
        let doctor = place.ok(&["--back-end", back_end, "doctor"]);
        assert!(
            doctor.contains(&format!("back end {back_end}")) && doctor.contains("--back-end"),
            "{doctor}"
        );
    });
    for_each_user(|place| {
        let mut command = place.command(&["env", "exec", TASK, "--", "true"]);
        let finished = place.finish(command.env("INFRADEV_BACK_END", "floppy"));
        assert!(finished.stderr.contains("expected one of erofs, stub, farm, copy"), "{}", finished.stderr);
    });
}

#[test]
fn privileged_an_image_is_refused_to_users_with_a_reason() {
    if lacks(Need::UserNamespaces) {
        return;
    }
    let place = Place::new(User::Ordinary);
    place.ok(&["build", TASK]);
    let finished = place.run(&["--back-end", "erofs", "env", "exec", TASK, "--", "true"]);
    let talk = "error: the back end `erofs` does not work here: only root may mount an image\n\
                hint: it comes from --back-end; `infradev doctor` lists those that work";
    crate::support::assert_failed(&finished, 125, talk);
}

#[test]
fn privileged_a_full_upper_is_an_error_of_the_command_alone() {
    if lacks(Need::Root) || lacks(Need::UserNamespaces) {
        return;
    }
    for (user, id) in [(User::Caller, 0), (User::Ordinary, 65534)] {
        let place = Place::new(user);
        std::fs::create_dir(place.store()).expect("an own directory");
        let options = format!("size=48m,mode=755,uid={id},gid={id}");
        let status =
            place_mount(&["-t", "tmpfs", "-o", &options, "none", &place.store().display().to_string()]);
        assert!(status, "a small file system");
        build_case(&place);
        for back_end in BACK_ENDS.into_iter().filter(|back_end| works(&place, back_end)) {
            let script = "cd case; dd if=/dev/zero of=fill bs=1M 2>&1 | grep -o 'No space left.*'; cat d/f; \
                          rm fill; echo new >d/new && echo more >>d/f && cat d/f d/new";
            let exec = ["--back-end", back_end, "env", "exec", TASK, "--", "sh", "-c", script];
            assert_eq!(place.ok(&exec), "No space left on device\nd/f\nd/f\nmore\nnew\n", "{back_end}");
        }
        place.assert_whole();
    }
}

pub(super) fn place_mount(arguments: &[&str]) -> bool {
    std::process::Command::new("mount").args(arguments).status().is_ok_and(|status| status.success())
}

#[test]
fn privileged_farms_are_collected_and_checked() {
    for_each_back_end(|place, back_end| {
        if back_end != "farm" {
            return;
        }
        place.ok(&["--back-end", "farm", "env", "exec", TASK, "--", "true"]);
        let trees = || place.listing("farm").into_iter().filter(|name| name != "pool").count();
        let pool = || -> Vec<std::path::PathBuf> {
            let directories = place.listing("farm/pool");
            let below = |name: &String| place.listing(&format!("farm/pool/{name}"));
            let path = |name: &String, file: String| place.store().join("farm/pool").join(name).join(file);
            directories.iter().flat_map(|name| below(name).into_iter().map(|file| path(name, file))).collect()
        };
        assert!(trees() == 1 && !pool().is_empty());
        assert!(place.ok(&["verify", "--read-data"]).contains(" copies for farms"));
        // A changed copy is found, by its mode and by its bytes.
        let copy = &pool()[0];
        let before = std::fs::metadata(copy).expect("a copy").permissions();
        std::fs::set_permissions(copy, std::os::unix::fs::PermissionsExt::from_mode(0o641)).expect("root");
        let verified = place.run(&["verify", "--read-data"]);
        assert_eq!(verified.status, 1, "{}", verified.stdout);
        assert!(verified.stdout.contains("its mode, owner, time or attributes"), "{}", verified.stdout);
        std::fs::set_permissions(copy, before).expect("root");
        // A farm goes with its stack, and a copy with its last farm.
        place.ok(&["rm", TASK]);
        place.ok(&["gc", "--all"]);
        assert_eq!((trees(), pool().len()), (0, 0));
        place.ok(&["build", TASK]);
    });
}
