"""Licences of everything that the programs link, with their texts: `notices.py TARGET...` after a build for these targets."""

import json
import pathlib
import subprocess
import sys

WORDS = ("licen", "copying", "notice", "copyright", "unlicense")

command = ["cargo", "metadata", "--locked", "--format-version=1"] + [f"--filter-platform={target}" for target in sys.argv[1:2]]
metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
programs = {"flashplan-front", "flashplan-run", "flashplan-profiler"} | ({"flashplan-planner"} if len(sys.argv) > 2 else set())
linked, todo = set(), [id for id in packages if packages[id]["name"] in programs and packages[id]["source"] is None]
while todo:
    id = todo.pop()
    if id in linked:
        continue
    linked.add(id)
    for dep in nodes[id]["deps"]:
        # what only builds or tests is in no program
        if any(kind["kind"] is None for kind in dep["dep_kinds"]):
            todo.append(dep["pkg"])
texts = {}
for package in sorted((packages[id] for id in linked if packages[id]["source"]), key=lambda package: package["name"]):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name.lower().startswith(WORDS)]
    name = f"{package['name']} {package['version']} ({package['license'] or 'see below'})"
    for path in files:
        texts.setdefault(path.read_text(errors="replace").strip(), []).append(name)
    if not files:
        texts.setdefault("", []).append(name)
print("The programs link Rust's standard library (MIT or Apache-2.0) and musl (MIT: Copyright 2005-2020 Rich Felker and others),")
print("plan uses Z3 (MIT: Copyright Microsoft Corporation), and all of them these packages, whose notices follow:\n")
for text, names in sorted(texts.items(), key=lambda item: item[1]):
    print("=" * 80)
    print("\n".join(sorted(set(names))))
    print(f"\n{text}\n" if text else "\n(no text beside the licence's name)\n")
