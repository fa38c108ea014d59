#!/usr/bin/python3
"""Carries out a Dockerfile's stages without an engine: debootstrap for the base, overlayfs for the layers, pivot_root for RUN.

    stages.py build DOCKERFILE STAGE [ARG=VALUE...]     builds STAGE and what it stands on; layers are kept in build/debian13
    stages.py run STAGE [--user UID] COMMAND...         runs a command in a built stage (default: as the stage's USER)
    stages.py image STAGE [NAME=VALUE...]               starts the stage as an engine would: ENTRYPOINT, CMD, ENV, USER
    stages.py health STAGE                              its HEALTHCHECK, in the same way
    stages.py size STAGE...                             prints what each adds to the base

Knows what our files use: FROM, ARG, RUN, COPY, WORKDIR, ENV, USER, CMD, ENTRYPOINT, EXPOSE, STOPSIGNAL, HEALTHCHECK. Needs root.
"""
import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
WORK = os.path.join(ROOT, "build", "debian13")
SUITE, MIRROR = "trixie", "http://deb.debian.org/debian"
# A machine whose connections pass a proxy of its own needs that proxy's certificate inside, too.
CERTIFICATES = os.environ.get("NODE_EXTRA_CA_CERTS")


def fail(message):
    sys.exit(f"stages.py: {message}")


def base_tree():
    tree = os.path.join(WORK, "base")
    if os.path.exists(os.path.join(tree, "etc/debian_version")) and not os.path.exists(tree + ".part"):
        return tree
    shutil.rmtree(tree, ignore_errors=True)
    os.makedirs(WORK, exist_ok=True)
    open(tree + ".part", "w").close()
    print(f"debian13: debootstrap {SUITE}", flush=True)
    with open(os.path.join(WORK, "debootstrap.log"), "w") as log:
        if subprocess.call(["debootstrap", "--variant=minbase", SUITE, tree, MIRROR], stdout=log, stderr=log) != 0:
            fail(f"debootstrap failed, see {log.name}")
    slim(tree)
    os.unlink(tree + ".part")
    return tree


def slim(tree):
    """What the slim image does for its size: no archives of packages are kept, no documents, no translations."""
    with open(os.path.join(tree, "etc/apt/apt.conf.d/clean"), "w") as f:
        f.write('DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };\nDir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";\n'
                'Acquire::Languages "none";\n')
    with open(os.path.join(tree, "etc/dpkg/dpkg.cfg.d/slim"), "w") as f:
        f.write("".join(f"path-exclude /usr/share/{name}/*\n" for name in ("doc", "info", "locale", "man")))
        f.write("path-include /usr/share/doc/*/copyright\n")
    shutil.rmtree(os.path.join(tree, "var/cache/apt"))
    os.makedirs(os.path.join(tree, "var/cache/apt/archives/partial"))


def parse(path):
    """The file's stages, in order: [{name, base, steps: [(instruction, argument)]}], and the ARGs before them."""
    text = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", open(path).read(), flags=re.M))
    stages, arguments = [], {}
    for line in filter(None, (one.strip() for one in text.split("\n"))):
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        if word == "ARG" and not stages:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "FROM":
            parts = rest.split()
            stages.append({"base": parts[0], "name": parts[2] if len(parts) > 2 else str(len(stages)), "steps": []})
        elif word in ("RUN", "COPY", "WORKDIR", "ENV", "USER", "CMD", "ENTRYPOINT", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"):
            stages[-1]["steps"].append((word, rest))
        else:
            fail(f"{path}: {word} is not known here")
    return stages, arguments


IGNORE = os.path.join(ROOT, ".dockerignore")


def context_files():
    """What an engine would get of the checkout: the files of git, less those of the ignore file."""
    rules = []
    for line in open(IGNORE):
        line = line.strip()
        if line and not line.startswith("#"):
            rules.append((not line.startswith("!"), line.lstrip("!")))
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
    files = []
    for name in filter(None, listed):
        kept = os.path.isfile(os.path.join(ROOT, name))
        for ignored, rule in rules:
            rule = rule.removeprefix("**/")
            parts = name.split("/")
            heads = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
            if any(fnmatch.fnmatchcase(head, rule) for head in heads) or any(part == rule for part in parts):
                kept = not ignored and os.path.isfile(os.path.join(ROOT, name))
        if kept:
            files.append(name)
    return files


class Stage:
    """A built stage: its layers (lowest last) and the image's settings."""

    def __init__(self, name, layers, config):
        self.name, self.layers = name, layers
        self.config = {"env": dict(config["env"]), "user": config["user"], "dir": config["dir"],
                       **{key: config[key] for key in ("cmd", "entrypoint", "health", "stop")}}

    def path(self, suffix):
        return os.path.join(WORK, self.name + suffix)

    def upper(self):
        return self.path(".layer")

    def save(self):
        with open(self.path(".json"), "w") as f:
            json.dump({"layers": self.layers, "config": self.config}, f)

    @staticmethod
    def load(name):
        try:
            with open(os.path.join(WORK, name + ".json")) as f:
                saved = json.load(f)
        except FileNotFoundError:
            fail(f"stage {name} has not been built")
        return Stage(name, saved["layers"], saved["config"])


EMPTY = {"env": {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, "user": "0:0", "dir": "/",
         "cmd": None, "entrypoint": None, "health": None, "stop": "SIGTERM"}


# In a mount namespace of its own: the overlay, /proc, /dev, the host's names; then the tree is the root.
ENTER = r"""
set -e
mount --make-rprivate /
if [ -n "$SCRATCH" ]; then mount -t tmpfs tmpfs "$SCRATCH"; UPPER=$SCRATCH/layer; mkdir "$UPPER" "$UPPER.work"; fi
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$UPPER.work" "$MERGED"
cd "$MERGED"
mount -t proc proc proc && mount --rbind /dev dev && mount --rbind /sys sys && mount -t tmpfs tmpfs tmp && mount -t tmpfs tmpfs run
touch etc/resolv.conf etc/hosts
mount --bind /etc/hosts etc/hosts; [ ! -e /etc/resolv.conf ] || mount --bind "$(realpath /etc/resolv.conf)" etc/resolv.conf
if [ -n "$CERTIFICATES" ]; then mkdir -p run/host && cp "$CERTIFICATES" run/host/certificates.pem; fi
if [ -n "$SHARED" ]; then mkdir -p run/shared && mount --bind "$SHARED" run/shared; fi
mkdir -p .old && pivot_root . .old && umount -l /.old && cd /
mkdir -p "$DIR" && cd "$DIR"
[ "$HOME_OF" = 0 ] || exec setpriv --reuid "${HOME_OF%:*}" --regid "${HOME_OF#*:}" --clear-groups --no-new-privs env -i "$@"
exec env -i "$@"
"""


def command(stage, words, user=None, extra=None, shared="", building=False):
    """Command line and environment that run `words` in the stage's tree: as part of it, or in a container that is gone afterwards."""
    scratch = "" if building else os.path.join(WORK, "scratch")
    for folder in filter(None, (stage.upper(), stage.upper() + ".work", stage.path(".root"), scratch)):
        os.makedirs(folder, exist_ok=True)
    env = {"HOME": "/root" if (user or stage.config["user"]).startswith("0") else "/tmp", **stage.config["env"], **(extra or {})}
    if CERTIFICATES:
        env["NODE_EXTRA_CA_CERTS"] = "/run/host/certificates.pem"
    outer = {**os.environ, "LOWER": ":".join(stage.layers if building else [stage.upper(), *stage.layers]),
             "SCRATCH": scratch, "UPPER": stage.upper(), "MERGED": stage.path(".root"),
             "CERTIFICATES": CERTIFICATES or "", "SHARED": shared, "DIR": stage.config["dir"],
             "HOME_OF": user or stage.config["user"]}
    if outer["HOME_OF"].startswith("0"):
        outer["HOME_OF"] = "0"
    pairs = [f"{key}={value}" for key, value in env.items()]
    return ["unshare", "-m", "sh", "-c", ENTER, "sh", *pairs, *words], outer


def copy(stage, rest):
    words = [word for word in rest.split() if not word.startswith("--")]
    source = re.search(r"--from=(\S+)", rest)
    target = os.path.normpath(os.path.join(stage.config["dir"], words[-1]))
    folder = words[-1].endswith("/") or words[-1] in (".", "/") or len(words) > 2
    if source:
        from_stage = Stage.load(source.group(1))
        for word in words[:-1]: # of what that stage itself made: its own layer
            tree = from_stage.upper() + "/" + word.strip("/")
            if not os.path.exists(tree):
                fail(f"COPY {rest}: no {word} in stage {from_stage.name}")
            put(stage, tree, target, folder)
        return
    files = context_files()
    for word in words[:-1]:
        word = os.path.normpath(word)
        chosen = [f for f in files if word == "." or f == word or f.startswith(word + "/")]
        if not chosen:
            fail(f"COPY {rest}: no {word} in the context")
        for name in chosen:
            inside = name if word == "." else os.path.relpath(name, word)
            to = os.path.join(target, os.path.basename(word) if folder and inside == "." else inside)
            to = os.path.normpath(stage.upper() + "/" + to)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), to)


def put(stage, tree, target, folder):
    to = os.path.normpath(stage.upper() + "/" + target)
    if os.path.isdir(tree):
        shutil.copytree(tree, to, symlinks=True, dirs_exist_ok=True)
    else:
        to = os.path.join(to, os.path.basename(tree)) if folder else to
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy2(tree, to)


def words_of(rest):
    return json.loads(rest) if rest.startswith("[") else ["/bin/sh", "-c", rest]


def step(stage, word, rest):
    if word == "RUN":
        argv, env = command(stage, ["/bin/sh", "-ec", rest], extra={"DEBIAN_FRONTEND": "noninteractive"}, building=True)
        status = subprocess.call(argv, env=env)
        if status != 0:
            fail(f"{stage.name}: RUN {rest[:200]}: status {status}")
    elif word == "COPY":
        copy(stage, rest)
    elif word == "WORKDIR":
        stage.config["dir"] = os.path.normpath(os.path.join(stage.config["dir"], rest))
    elif word == "ENV":
        stage.config["env"].update(pair.split("=", 1) for pair in shlex.split(rest))
    elif word == "USER":
        stage.config["user"] = rest if ":" in rest else f"{rest}:{rest}"
    elif word == "CMD":
        stage.config["cmd"] = words_of(rest)
    elif word == "ENTRYPOINT":
        stage.config["entrypoint"] = words_of(rest)
    elif word == "HEALTHCHECK":
        stage.config["health"] = words_of(rest.split("CMD", 1)[1].strip())
    elif word == "STOPSIGNAL":
        stage.config["stop"] = rest


def key_of(stage_spec, below):
    """A stage is built again when its steps, what it stands on, or the files that it copies have changed."""
    digest = hashlib.sha256(json.dumps([stage_spec, below]).encode())
    if any(word == "COPY" for word, _ in stage_spec["steps"]):
        for name in context_files():
            digest.update(name.encode() + b"\0")
            with open(os.path.join(ROOT, name), "rb") as f:
                digest.update(hashlib.sha256(f.read()).digest())
    return digest.hexdigest()


def build(path, wanted, given):
    global IGNORE
    IGNORE = path + ".dockerignore" if os.path.exists(path + ".dockerignore") else IGNORE
    stages, arguments = parse(path)
    arguments.update(given)
    by_name = {stage["name"]: stage for stage in stages}

    def make(name):
        spec = by_name[name]
        base = re.sub(r"\$\{(\w+)\}", lambda m: arguments[m.group(1)], spec["base"])
        for word, rest in spec["steps"]:
            source = re.search(r"--from=(\S+)", rest) if word == "COPY" else None
            if source and source.group(1) in by_name:
                make(source.group(1))
        if base in by_name:
            make(base)
            parent = Stage.load(base)
        elif os.path.exists(os.path.join(WORK, base + ".json")):
            parent = Stage.load(base)
        elif base.startswith(f"debian:{SUITE}"):
            parent = Stage("base", [], EMPTY)
            parent.upper = base_tree
        else:
            fail(f"{base}: only debian:{SUITE} can be made here")
        made = os.path.join(WORK, name + ".key")
        below = [open(os.path.join(WORK, base + ".key")).read()] if os.path.exists(os.path.join(WORK, base + ".key")) else []
        key = key_of(spec, below)
        if os.path.exists(made) and open(made).read() == key:
            return
        stage = Stage(name, [parent.upper(), *parent.layers], parent.config)
        for leftover in (made, stage.upper(), stage.upper() + ".work"):
            shutil.rmtree(leftover, ignore_errors=True) if os.path.isdir(leftover) else (
                os.path.exists(leftover) and os.unlink(leftover))
        os.makedirs(stage.upper())
        for word, rest in spec["steps"]:
            print(f"debian13: {name}: {word} {rest[:90]}", flush=True)
            step(stage, word, rest)
        stage.save()
        with open(made, "w") as f:
            f.write(key)

    make(wanted)


def megabytes(folders):
    kib = subprocess.run(["du", "-sk", *folders], check=True, stdout=subprocess.PIPE).stdout.decode()
    return round(sum(int(line.split()[0]) for line in kib.splitlines()) * 1024 / 1e6)


def main():
    if len(sys.argv) < 3:
        fail("build, run, image, health or size, and what")
    if os.geteuid() != 0:
        fail("needs root: mounts and pivot_root")
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "build":
        build(rest[0], rest[1], dict(pair.split("=", 1) for pair in rest[2:]))
        return
    if verb == "size":
        for name in rest:
            stage = Stage.load(name)
            print(f"debian13: {name}: {megabytes([stage.upper(), *stage.layers[:-1]])} MB above the base")
        return
    stage = Stage.load(rest[0])
    if verb == "run":
        user = None
        if rest[1:2] == ["--user"]:
            user = rest[2]
            del rest[1:3]
        argv, env = command(stage, rest[1:], user=user, shared=os.environ.get("SHARED", ""))
    elif verb == "image":
        words = [*(stage.config["entrypoint"] or []), *(stage.config["cmd"] or [])]
        argv, env = command(stage, words, extra=dict(pair.split("=", 1) for pair in rest[1:]),
                            shared=os.environ.get("SHARED", ""))
    elif verb == "health":
        argv, env = command(stage, stage.config["health"], extra=dict(pair.split("=", 1) for pair in rest[1:]),
                            shared=os.environ.get("SHARED", ""))
    else:
        fail(f"{verb}: build, run, image, health or size")
    os.execvpe(argv[0], argv, env)


if __name__ == "__main__":
    main()
