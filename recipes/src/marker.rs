//! The environment that markers are evaluated in.

use pep508_rs::{MarkerEnvironment, MarkerEnvironmentBuilder};

use crate::target::Target;

/// Describes `target` to markers: CPython on Linux, of a patch release and kernel that no marker of a
/// pinned distribution asks for.
pub(crate) fn environment_of(target: &Target) -> MarkerEnvironment {
    let version = target.python.to_string();
    let full = format!("{version}.0");
    let builder = MarkerEnvironmentBuilder {
        implementation_name: "cpython",
        implementation_version: &full,
        os_name: "posix",
        platform_machine: target.architecture.as_str(),
        platform_python_implementation: "CPython",
        platform_release: "",
        platform_system: "Linux",
        platform_version: "",
        python_full_version: &full,
        python_version: &version,
        sys_platform: "linux",
    };
    MarkerEnvironment::try_from(builder).expect("`3.N` and `3.N.0` are versions")
}
