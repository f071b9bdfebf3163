"""Makes a small container image of this machine's own files, as an image layout and as a docker archive.

Arguments: the directory for both, which must exist. Two layers: programs with Python, and changes over them.
"""

import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile

PROGRAMS = ["/bin/sh", "/bin/cat", "/bin/ls", "/bin/id", "/bin/rm", "/usr/bin/env"]
MODULES = "site, os, re, io, importlib.util, importlib.metadata, json, struct, runpy, sysconfig, encodings.ascii, encodings.latin_1, encodings.idna"
out = sys.argv[1]
python = os.path.realpath("/usr/bin/python3")
version = "%d.%d" % sys.version_info[:2]


def libraries(program):
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    words = [word for line in said.splitlines() for word in line.split()]
    return [word for word in words if word.startswith("/")]


def modules():
    code = "import sys, %s; print('\\n'.join(str(getattr(m, '__file__', None)) for m in list(sys.modules.values())))"
    said = subprocess.run([python, "-I", "-c", code % MODULES], capture_output=True, text=True, check=True).stdout
    found = {os.path.realpath(path) for path in said.split() if path.startswith("/usr/lib")}
    # The landmark by which Python finds its library.
    return found | {os.path.realpath(os.__file__)}


def add(archive, name, content=None, mode=0o644, kind=tarfile.REGTYPE, link="", owner=0):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.mtime, entry.uid = kind, mode, link, 1700000000, owner
    entry.size = len(content or b"")
    archive.addfile(entry, io.BytesIO(content or b""))


def layer(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        entries(archive)
    return buffer.getvalue()


def lower(archive):
    files = {}
    for program in PROGRAMS:
        files["usr/bin/" + os.path.basename(program)] = program
    files["usr/bin/python" + version] = python
    natives = PROGRAMS + [python]
    for path in modules():
        files[path.lstrip("/")] = path
        natives += [path] if path.endswith(".so") else []
    for native in natives:
        for library in libraries(native):
            name = library if library.startswith("/usr") else "/usr" + library
            files[name.lstrip("/")] = os.path.realpath(library)
    folders = {"usr", "etc", "var", "usr/lib64"}
    for name in files:
        while "/" in name:
            name = name.rsplit("/", 1)[0]
            folders.add(name)
    for folder in sorted(folders):
        add(archive, folder, mode=0o755, kind=tarfile.DIRTYPE)
    for name in ["bin", "lib", "lib64"]:
        add(archive, name, mode=0o777, kind=tarfile.SYMTYPE, link="usr/" + name)
    for name, path in sorted(files.items()):
        with open(path, "rb") as file:
            add(archive, name, file.read(), 0o755 if os.access(path, os.X_OK) else 0o644)
    add(archive, "usr/bin/also-cat", kind=tarfile.LNKTYPE, link="usr/bin/cat")
    add(archive, "etc/gone", b"removed by the upper layer\n")
    add(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    add(archive, "var/mail", mode=0o2775, kind=tarfile.DIRTYPE, owner=8)


def upper(archive):
    add(archive, "etc/.wh.gone")
    above(archive)


def above(archive):
    add(archive, "etc/release", b"small\n", owner=1000)
    add(archive, "dev", mode=0o755, kind=tarfile.DIRTYPE)
    add(archive, "dev/pipe", mode=0o600, kind=tarfile.FIFOTYPE)


def both(archive):
    lower(archive)
    above(archive)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


os.makedirs(out + "/layout/blobs/sha256")


def blob(content, media_type):
    digest = sha256(content)
    with open(out + "/layout/blobs/sha256/" + digest, "wb") as file:
        file.write(content)
    return {"mediaType": media_type, "digest": "sha256:" + digest, "size": len(content)}


OCI = "application/vnd.oci.image."
layers = [layer(lower), layer(upper)]
architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
config = json.dumps({
    "architecture": architecture,
    "os": "linux",
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(content) for content in layers]},
}).encode()
blobs = [blob(gzip.compress(content, 1, mtime=0), OCI + "layer.v1.tar+gzip") for content in layers]
manifest = json.dumps({
    "schemaVersion": 2,
    "mediaType": OCI + "manifest.v1+json",
    "config": blob(config, OCI + "config.v1+json"),
    "layers": blobs,
}).encode()
image = blob(manifest, OCI + "manifest.v1+json")
other = dict(image, digest="sha256:" + "0" * 64, platform={"os": "linux", "architecture": "s390x"})
listed = dict(image, platform={"os": "linux", "architecture": architecture})
index = json.dumps({"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": [other, listed]}).encode()
listing = blob(index, OCI + "index.v1+json")
tag = "org.opencontainers.image.ref.name"
with open(out + "/layout/index.json", "w") as file:
    manifests = [dict(image, annotations={tag: "one"}), dict(listing, annotations={tag: "many"})]
    json.dump({"schemaVersion": 2, "manifests": manifests}, file)
with open(out + "/layout/oci-layout", "w") as file:
    file.write('{"imageLayoutVersion":"1.0.0"}')
with tarfile.open(out + "/archive.tar", "w") as archive:
    names = ["%d/layer.tar" % number for number in range(len(layers))]
    for name, content in zip(names, layers):
        add(archive, name, content)
    add(archive, "config.json", config)
    saved = [{"Config": "config.json", "RepoTags": ["small:1"], "Layers": names}]
    add(archive, "manifest.json", json.dumps(saved).encode())
rootfs = gzip.compress(layer(both), 1, mtime=0)
with open(out + "/rootfs.tar.gz", "wb") as file:
    file.write(rootfs)
facts = {"manifest": image["digest"], "list": listing["digest"], "config": "sha256:" + sha256(config)}
with open(out + "/facts.json", "w") as file:
    json.dump(dict(facts, rootfs="sha256:" + sha256(rootfs)), file)
