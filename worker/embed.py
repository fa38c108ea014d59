#!/usr/bin/env python3
"""Turns files into C string constants: embed.py OUT.c NAME=FILE... NAME=FOLDER...

Each NAME becomes `const char embedded_NAME[]` (with a NUL behind it) and `const size_t embedded_NAME_len`. A folder is
a Python package; it becomes an archive that Python runs (as of zipapp), the same bytes from the same files.
"""
import io
import os
import sys
import zipfile


def archive(folder):
    """Stored, not deflated: zlib's output differs between its versions."""
    package = os.path.basename(folder)
    files = {"__main__.py": f"from {package}.__main__ import main\n\nmain()\n".encode()}
    for name in os.listdir(folder):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as f:
                files[f"{package}/{name}"] = f.read()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            z.writestr(info, files[name])
    return out.getvalue()


def read(path):
    if os.path.isdir(path):
        return archive(path)
    with open(path, "rb") as f:
        return f.read()


def literal(data):
    """Bytes as octal escapes: right whether char is signed or not."""
    lines = []
    for start in range(0, len(data), 24):
        lines.append('    "' + "".join(f"\\{byte:03o}" for byte in data[start:start + 24]) + '"')
    return "\n".join(lines) or '    ""'


def main():
    out_path, pairs = sys.argv[1], sys.argv[2:]
    lines = ["/* Made at build time; do not edit. */", "#include <stddef.h>", '#include "worker/embedded.h"', ""]
    for pair in pairs:
        name, path = pair.split("=", 1)
        data = read(path)
        lines.append(f"const char embedded_{name}[] =\n{literal(data)};")
        lines.append(f"const size_t embedded_{name}_len = {len(data)};")
    with open(out_path, "w") as f:
        f.write("\n".join(lines) + "\n")


main()
