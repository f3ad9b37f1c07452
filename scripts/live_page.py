#!/usr/bin/env python3
"""Looks at the live page in a headless browser, while a cluster runs and a client reads and writes.

    scripts/live_page.py target/debug/fatbtree [--pictures FOLDER]

It starts the example cluster with `up --page`, loads keys, runs `bench`, and has Chromium open the page at three widths, in light and dark.
The text that the browser shows must name every role and must have counted operations; a picture must not be wider than its window. Then
the controller is killed, and the page must say that it does not answer.
"""

import argparse
import html
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENCE_S = 90
# Width of the window in pixels: a telephone, a tablet, a desk.
WIDTHS = (390, 820, 1280)


def browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        for folder in os.environ["PATH"].split(":"):
            if os.access(f"{folder}/{name}", os.X_OK):
                return f"{folder}/{name}"
    sys.exit("no Chromium found: install the package chromium")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def show(program, address, *arguments):
    """What the browser shows after 60 looks, as text. Its timers run as fast as answers come."""
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=60000"]
    done = subprocess.run([*command, *arguments, address], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    shown = re.sub(r"<(script|style)\b.*?</\1>", "", done.stdout, flags=re.S)
    return html.unescape(re.sub(r"<[^>]+>", " ", shown))


def expect(shown, *patterns):
    for pattern in patterns:
        if not re.search(pattern, shown):
            sys.exit(f"live page: FAILED: expected {pattern!r} in what the browser shows, found\n{shown}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("fatbtree", type=Path, help="the program")
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the page")
    arguments = parser.parse_args()
    program, chromium, port = str(arguments.fatbtree.resolve()), browser(), free_port()
    address = f"http://127.0.0.1:{port}"
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fatbtree-page-") as folder:
        file = Path(folder) / "cluster.toml"
        file.write_text(subprocess.run([program, "topology", "example"], capture_output=True, text=True, check=True).stdout)
        up = subprocess.Popen([program, "up", str(file), "--page", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
        bench = None
        try:
            for line in up.stdout:
                if line.strip() == "ready":
                    break
            else:
                sys.exit("live page: FAILED: `up` has ended")
            subprocess.run([program, "load", "--cluster", str(file), "--keys", "100000"], check=True, capture_output=True)
            bench = subprocess.Popen(
                [program, "bench", "--cluster", str(file), "--workload", "a", "--operations", "100000000", "--json", "-"],
                stdout=subprocess.DEVNULL,
            )
            end = time.monotonic() + PATIENCE_S
            while True:
                shown = show(chromium, address, "--dump-dom")
                if re.search(r"epoch \d+, [1-9]", shown) and re.search(r"\bclient\s+[1-9][\d\u202f]*\s+[1-9]", shown) and re.search(r"fat root\s+[1-9]", shown):
                    break
                if time.monotonic() > end:
                    sys.exit(f"live page: FAILED: no plan, or no reads of the client, within {PATIENCE_S} s:\n{shown}")
            expect(shown, "13 of 13 answer", "2 of 2 serve", "core-0", "agg-1-0", "edge-1-0", "left", "right", "fat root", "bytes a lookup", r"\d µs|\d ms")
            for width in WIDTHS:
                for theme in ("light", "dark"):
                    dark = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
                    picture = (arguments.pictures or Path(folder)) / f"live-page-{width}-{theme}.png"
                    show(chromium, address, f"--window-size={width},1400", f"--screenshot={picture}", *dark)
                    if not picture.stat().st_size:
                        sys.exit(f"live page: FAILED: no picture at {width} pixels")
            bench.terminate()
            bench.wait()
            # The controller is stopped dead: the page says so, and goes on when it is there again.
            controller = int(subprocess.run(["pgrep", "-f", f"controller --cluster {file}"], capture_output=True, text=True, check=True).stdout.split()[0])
            os.kill(controller, signal.SIGSTOP)
            expect(show(chromium, address, "--dump-dom"), "controller")
            os.kill(controller, signal.SIGCONT)
            expect(show(chromium, address, "--dump-dom"), "13 of 13 answer")
        finally:
            if bench:
                bench.kill()
            up.send_signal(signal.SIGINT)
            up.wait(PATIENCE_S)
    print(f"live page: every role shown, at {len(WIDTHS)} widths in light and dark; a frozen controller is reported")


if __name__ == "__main__":
    main()
