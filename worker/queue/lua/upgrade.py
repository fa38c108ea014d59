#!/usr/bin/env python3
"""Pins another BullMQ: upgrade.py VERSION (run by `make bullmq VERSION=x`).

Fetches the package, shows what changed in the Lua that the worker uses, and writes the new version and hashes into
bullmq.lock. The tests' stock Worker becomes the same version. What the C code and our override of fetchNextJob assume
must be looked at by a person: the diff is for that. `git checkout worker/queue/lua/bullmq.lock tests/package*.json`
undoes it.
"""
import base64
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
DEPS = os.path.join(ROOT, "build", "deps")
LOCK = os.path.join(HERE, "bullmq.lock")
COMMANDS = "package/dist/cjs/commands/"
INCLUDE = re.compile(r'^--+[ \t]*@include "([^"]+)"', re.M)


def fetch(version):
    path = os.path.join(DEPS, f"bullmq-{version}.tgz")
    if not os.path.exists(path):
        os.makedirs(DEPS, exist_ok=True)
        if subprocess.run(["npm", "pack", "--silent", f"bullmq@{version}"], cwd=DEPS, stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"bullmq {version} cannot be had from npm")
    return path


def read(path):
    with tarfile.open(path) as tar:
        return {m.name[len(COMMANDS):]: tar.extractfile(m).read().decode() for m in tar
                if m.isfile() and m.name.startswith(COMMANDS) and m.name.endswith(".lua")}


def reach(files, names):
    """Those files and all that they include."""
    todo, seen = list(names), set()
    while todo:
        name = todo.pop()
        if name in seen or name not in files:
            continue
        seen.add(name)
        todo += [f"includes/{os.path.basename(i)}.lua" for i in INCLUDE.findall(files[name])]
    return seen


def show(old, new, used):
    changed = sorted(n for n in set(old) | set(new) if old.get(n) != new.get(n))
    for name in changed:
        if name not in used:
            continue
        sys.stdout.writelines(difflib.unified_diff(old.get(name, "").splitlines(True), new.get(name, "").splitlines(True),
                                                   f"pinned/{name}", f"new/{name}"))
    others = [n for n in changed if n not in used]
    if others:
        print("changed too, not used by the worker:", ", ".join(others))
    if not changed:
        print("no Lua has changed")


def our_includes():
    names = set()
    for name in os.listdir(HERE):
        if name.endswith(".lua"):
            with open(os.path.join(HERE, name)) as f:
                names |= {f"includes/{os.path.basename(i)}.lua" for i in INCLUDE.findall(f.read())}
    return names


def renamed(stock, new):
    """Scripts whose number of keys (the end of their names) is another now: [old, new]."""
    out = []
    for name in stock:
        if name + ".lua" not in new:
            base = name.rsplit("-", 1)[0]
            out.append([name, next((n[:-4] for n in new if re.fullmatch(re.escape(base) + r"-\d+\.lua", n)), None)])
    return out


def main():
    version = sys.argv[1] if len(sys.argv) > 1 else ""
    if not re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", version):
        sys.exit("say which: make bullmq VERSION=6.7.1")
    with open(LOCK) as f:
        lock = json.load(f)
    tarball = fetch(version)
    old, new = read(fetch(lock["version"])), read(tarball)
    stock = [name + ".lua" for name in lock["stock"]]
    roots = set(lock["known"]) | set(stock) | our_includes()
    show(old, new, reach(old, roots) | reach(new, roots))
    wrong = renamed(lock["stock"], new)
    if wrong:
        sys.exit("\n".join(f"{a}: {'is now ' + b if b else 'is gone'}: the C code that calls it must follow first, then "
                           f"the lock's \"stock\" and \"known\"" for a, b in wrong))
    for name in lock["known"]:
        if name not in new:
            sys.exit(f"{name} is gone: look at our override of fetchNextJob, then at the lock's \"known\"")
        found = hashlib.sha256(new[name].encode()).hexdigest()
        if found != lock["known"][name]:
            print(f"LOOK AT IT: {name} has changed; our fetchNextJob.lua and the C code that calls it may have to follow")
        lock["known"][name] = found
    callers = sorted(n for n, text in new.items() if re.search(r"\bfetchNextJob\(", text) and "/" not in n)
    if callers != lock["callers"]:
        print(f"LOOK AT IT: fetchNextJob is now called by {', '.join(callers)}")
    with open(tarball, "rb") as f:
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(f.read()).digest()).decode()
    lock.update(version=version, integrity=integrity, callers=callers)
    with open(LOCK, "w") as f:
        f.write(json.dumps(lock, indent=2) + "\n")
    tests = os.path.join(ROOT, "tests")
    with open(os.path.join(tests, "package.json")) as f:
        have = json.load(f)["dependencies"]["bullmq"]
    if have != version:
        subprocess.run(["npm", "install", "--save-exact", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error",
                        f"bullmq@{version}"], cwd=tests, check=True, stdout=subprocess.DEVNULL)
        print(f"the tests' stock Worker is {version} now")
    print(f"pinned bullmq {version}")


main()
