//! What a command in a sandbox can see and do.

use super::for_each_user;
use crate::support::{Need, Place, TASK, User, lacks};

#[test]
fn no_network_but_loopback() {
    for_each_user(|place| {
        let script = "ls /sys/class/net; cat /proc/net/route | wc -l; \
                      python -c 'import socket; a = socket.create_server((\"127.0.0.1\", 0)); \
                      b = socket.create_connection(a.getsockname()); print(\"loopback up\")'";
        assert_eq!(place.sh(script), "lo\n1\nloopback up\n");
    });
}

#[test]
fn own_processes_and_names() {
    for_each_user(|place| {
        let shown = place.sh("hostname 2>/dev/null || cat /proc/sys/kernel/hostname; echo $$; ls -d /proc/[0-9]* | wc -l; id -u; id -g");
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "infradev");
        assert!(lines[1].parse::<u32>().is_ok_and(|pid| pid < 10), "a process namespace of its own: {shown}");
        assert!(lines[2].parse::<u32>().is_ok_and(|count| count < 10), "{shown}");
        assert_eq!(&lines[3..], ["0", "0"]);
    });
}

#[test]
fn no_privileges() {
    for_each_user(|place| {
        let status = place.sh("cat /proc/self/status");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).expect("a field of the status");
            line.split_whitespace().nth(1).unwrap_or_default().to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
        let groups = status.lines().find(|line| line.starts_with("Groups:")).unwrap_or_default();
        // Rootless runs keep the caller's groups as the overflow group, which owns nothing.
        assert!(groups.split_whitespace().skip(1).all(|group| group == "65534"), "{groups}");
        let attempts = "mount -t tmpfs none /mnt 2>/dev/null && echo mounted; \
                        unshare --user --map-root-user true 2>/dev/null; chroot / true 2>/dev/null && echo chroot; \
                        mknod /tmp/null c 1 3 2>/dev/null && echo device; \
                        hostname other 2>/dev/null && echo hostname; true";
        assert_eq!(place.sh(attempts), "");
    });
}

#[test]
fn no_descriptors_leak() {
    for_each_user(|place| {
        assert_eq!(place.sh("ls /proc/self/fd"), "0\n1\n2\n3\n", "3 is the listing's own");
    });
}

#[test]
fn only_chosen_variables() {
    for_each_user(|place| {
        let mut command = place.command(&["env", "exec", TASK, "--", "env"]);
        command.env("SECRET_TOKEN", "leak").env("LD_PRELOAD", "").env("PYTHONPATH", "/x");
        let finished = place.finish(&mut command);
        let mut names: Vec<&str> =
            finished.stdout.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        names.sort_unstable();
        names.retain(|name| !matches!(*name, "_" | "PWD" | "SHLVL"));
        let expected = [
            "DEMO",
            "GIT_CONFIG_COUNT",
            "GIT_CONFIG_KEY_0",
            "GIT_CONFIG_VALUE_0",
            "HOME",
            "LANG",
            "PATH",
            "PYTHONDONTWRITEBYTECODE",
            "TZ",
            "VIRTUAL_ENV",
        ];
        assert_eq!(names, expected);
    });
}

#[test]
fn the_host_is_out_of_reach() {
    for_each_user(|place| {
        let outside = place.path("outside");
        std::fs::write(&outside, "secret\n").expect("an own file");
        let script = format!(
            "cat {} 2>/dev/null; echo x >/tmp/private && ls -A /tmp; ls -A /dev/shm; \
             for file in /proc/kcore /proc/keys /proc/timer_list; do cat $file 2>/dev/null | head -c 1; done; \
             echo 1 2>/dev/null >/proc/sys/vm/drop_caches && echo wrote; \
             touch /usr/made 2>/dev/null && echo usr; touch /etc/made 2>/dev/null && echo etc; \
             ls /dev | tr '\\n' ' '",
            outside.display()
        );
        let shown = place.sh(&script);
        let devices = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ";
        let plain = "full null pts random shm tty urandom zero ";
        let rest = shown.strip_prefix("private\n").unwrap_or_else(|| panic!("{shown}"));
        assert!(rest == devices || rest == plain, "unexpected devices: {rest}");
        assert!(!std::path::Path::new("/tmp/private").exists(), "/tmp is the run's own");
    });
}

#[test]
fn the_store_cannot_be_changed_from_inside() {
    for_each_user(|place| {
        let before = place.contents();
        let script = "find /workspace /opt/env -type f -exec sh -c 'echo poison >>\"$1\"' - {} \\; ; \
                      chmod -R 0777 /workspace /opt/env; rm -rf /workspace/demo/demo; mv /workspace/demo/native /workspace/moved";
        place.sh(script);
        assert!(place.contents() == before, "the store changed");
        place.assert_whole();
        assert_eq!(place.sh("cat demo/__init__.py"), "VALUE = 1\n");
    });
}

#[test]
fn standard_devices_work() {
    for_each_user(|place: &Place| {
        let script = "echo x >/dev/null && head -c 4 /dev/zero | od -An -tx1 && head -c 8 /dev/urandom | wc -c \
                      && python -c 'import multiprocessing; multiprocessing.Semaphore(1); print(\"shm\")' \
                      && python -c 'import pty; pty.openpty(); print(\"pty\")'; echo y | cat /dev/stdin; (echo z >/dev/stdout) | cat";
        assert_eq!(place.sh(script), " 00 00 00 00\n8\nshm\npty\ny\nz\n");
    });
}

#[test]
fn privileged_pipes_can_be_opened_by_name() {
    if lacks(Need::Root) {
        return;
    }
    let place = Place::new(User::Caller);
    place.ok(&["build", TASK]);
    // The pipe is root's, and root inside is somebody else.
    assert_eq!(
        place.sh("echo out >/dev/stdout; echo err >/dev/stderr; echo tee | tee /dev/stderr"),
        "out\ntee\n"
    );
}
