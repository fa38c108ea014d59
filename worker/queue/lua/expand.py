#!/usr/bin/env python3
"""Expands BullMQ's Lua and ours into one C file: expand.py LOCK TARBALL OUR_LUA_DIR OUT.c

The tarball's hash must be the one in the lock file; the include that we override, its callers and the script
that ours replaces must be the ones we know, else the build stops and says what changed.
"""
import base64
import hashlib
import json
import os
import re
import sys
import tarfile

INCLUDE = re.compile(r'^--+[ \t]*@include "([^"]+)"', re.M)
COMMANDS = "package/dist/cjs/commands/"


def fail(message):
    sys.exit(f"expand.py: {message}")


def read_package(lock, tarball):
    with open(tarball, "rb") as f:
        data = f.read()
    found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != lock["integrity"]:
        fail(f"{tarball} is not bullmq {lock['version']}: its hash is {found}, the lock file has {lock['integrity']}")
    files = {}
    with tarfile.open(tarball) as tar:
        for member in tar:
            if member.isfile() and member.name.startswith(COMMANDS) and member.name.endswith(".lua"):
                files[member.name[len(COMMANDS):]] = tar.extractfile(member).read().decode()
    return files


def check(lock, files):
    for name, want in lock["known"].items():
        if name not in files:
            fail(f"bullmq {lock['version']} has no {name}: our override of fetchNextJob must be looked at again")
        found = hashlib.sha256(files[name].encode()).hexdigest()
        if found != want:
            fail(f"{name} has changed (sha256 {found}): check our fetchNextJob and claim against it, then put the "
                 "new hash into the lock file")
    callers = sorted(n for n, text in files.items() if re.search(r"\bfetchNextJob\(", text) and "/" not in n)
    if callers != lock["callers"]:
        fail(f"fetchNextJob is now called by {callers}, the lock file has {lock['callers']}")


def expand(name, text, files, ours, seen):
    def one(match):
        base = os.path.basename(match.group(1))
        if base in seen:
            return ""
        seen.add(base)
        body = ours.get(base + ".lua") or files.get(f"includes/{base}.lua")
        if body is None:
            fail(f"{name} includes {match.group(1)}, which nobody has")
        return expand(base, body, files, ours, seen)

    return INCLUDE.sub(one, text)


def c_string(text):
    """A C string literal a line (ISO C promises only 4095 bytes a literal: so an array of characters)."""
    data = text.encode()
    rows = [",".join(str(b) for b in data[i:i + 32]) for i in range(0, len(data), 32)]
    return ",\n    ".join(rows) + ", 0"


def main():
    lock_path, tarball, our_dir, out = sys.argv[1:]
    with open(lock_path) as f:
        lock = json.load(f)
    files = read_package(lock, tarball)
    check(lock, files)
    ours = {}
    for name in sorted(os.listdir(our_dir)):
        if name.endswith(".lua"):
            with open(os.path.join(our_dir, name)) as f:
                ours[name] = f.read()
    lines = ["/* Made at build time from BullMQ's Lua (MIT, see THIRD_PARTY_NOTICES) and ours; do not edit. */",
             '#include "worker/queue/scripts.h"', ""]
    for script in lock["stock"] + lock["ours"]:
        source = ours[script + ".lua"] if script in lock["ours"] else files[script + ".lua"]
        text = expand(script, source, files, ours, set())
        before = lock.get("before", {}).get(script)
        if before:
            own = expand(before, ours[before + ".lua"], files, ours, set())
            # Ours goes before BullMQ's text, or around it where a line says so.
            text = own.replace("--- @stock", text) if "\n--- @stock\n" in own else own + "\n" + text
        text = "\n".join(line for line in text.split("\n") if line.strip()) + "\n"
        symbol = "script_" + script.split("-")[0]
        sha1 = hashlib.sha1(text.encode()).hexdigest()
        lines.append(f"static const char {symbol}_text[] = {{\n    {c_string(text)}}};")
        lines.append(f'const struct redis_script {symbol} = {{"{script}", {symbol}_text, {len(text.encode())}, "{sha1}"}};')
    lines.append(f'const char *const script_bullmq_version = "{lock["version"]}";')
    with open(out, "w") as f:
        f.write("\n".join(lines) + "\n")


main()
