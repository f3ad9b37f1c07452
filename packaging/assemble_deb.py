#!/usr/bin/env python3
"""Puts the Debian package together from what `[package.metadata.deb]` of cli/Cargo.toml says (the format of cargo-deb).

    cargo metadata --no-deps --format-version 1 | packaging/assemble_deb.py PROGRAM FOLDER

`target/release/packaging` stands for FOLDER/packaging, `target/release/fatbtree` for PROGRAM. Writes FOLDER/fatbtree_*.deb.
"""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def libraries(program, architecture):
    """The packages of the libraries that a program is linked to, with versions."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "debian"))
        with open(os.path.join(folder, "debian/control"), "w", encoding="utf-8") as control:
            control.write(f"Source: fatbtree\n\nPackage: fatbtree\nArchitecture: {architecture}\n")
        said = run("dpkg-shlibdeps", "-O", os.path.abspath(program), cwd=folder)
    return said.split("shlibs:Depends=", 1)[1].strip()


def main():
    program, folder = sys.argv[1:3]
    package = next(found for found in json.load(sys.stdin)["packages"] if found["name"] == "fatbtree-cli")
    deb, here = package["metadata"]["deb"], os.path.dirname(package["manifest_path"])
    architecture = run("dpkg", "--print-architecture").strip()
    version = f"{package['version']}-1"
    root = os.path.join(folder, "root")
    shutil.rmtree(root, ignore_errors=True)

    installed = []
    for source, to, mode in deb["assets"]:
        if source == "target/release/fatbtree":
            found = [program]
        elif source.startswith("target/release/packaging/"):
            found = glob.glob(source.replace("target/release", folder, 1))
        else:
            found = glob.glob(os.path.join(here, source))
        if not found:
            sys.exit(f"expected files at {source}, which cli/Cargo.toml lists, found none")
        for path in sorted(found):
            name = os.path.basename("fatbtree" if path == program else path)
            place = os.path.join(to, name) if to.endswith("/") else to
            target = os.path.join(root, place)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(path, target)
            os.chmod(target, int(mode, 8))
            installed.append(place)
    license_file = os.path.join(root, "usr/share/doc/fatbtree/copyright")
    shutil.copyfile(os.path.join(here, deb["license-file"][0]), license_file)
    installed.append("usr/share/doc/fatbtree/copyright")
    for above, folders, _ in os.walk(root):
        for name in folders:
            os.chmod(os.path.join(above, name), 0o755)

    control = os.path.join(root, "DEBIAN")
    os.makedirs(control, mode=0o755)
    kilobytes = sum(os.path.getsize(os.path.join(root, place)) for place in installed) // 1024
    fields = {
        "Package": deb["name"],
        "Version": version,
        "Architecture": architecture,
        "Maintainer": deb["maintainer"],
        "Installed-Size": kilobytes,
        "Depends": libraries(program, architecture) if deb["depends"] == "$auto" else deb["depends"],
        "Recommends": deb["recommends"],
        "Section": deb["section"],
        "Priority": "optional",
        "Description": f"{package['description']}\n {deb['extended-description']}",
    }
    texts = {
        "control": "".join(f"{name}: {value}\n" for name, value in fields.items()),
        "conffiles": "".join(f"{path}\n" for path in deb["conf-files"]),
        "md5sums": "",
    }
    for place in installed:
        with open(os.path.join(root, place), "rb") as file:
            texts["md5sums"] += f"{hashlib.file_digest(file, 'md5').hexdigest()}  {place}\n"
    for name, text in texts.items():
        with open(os.path.join(control, name), "w", encoding="utf-8") as file:
            file.write(text)
    for script in glob.glob(os.path.join(here, deb["maintainer-scripts"], "*")):
        shutil.copyfile(script, os.path.join(control, os.path.basename(script)))
        os.chmod(os.path.join(control, os.path.basename(script)), 0o755)
    path = os.path.join(folder, f"{deb['name']}_{version}_{architecture}.deb")
    # Under its name when it is whole.
    partial = f"{path}.partial"
    run("dpkg-deb", "--root-owner-group", "--build", root, partial)
    os.replace(partial, path)
    shutil.rmtree(root)
    size, whole = os.path.getsize(program), os.path.getsize(path)
    print(f"{path}: {whole / 1e6:.1f} MB, the program {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
