"""The Dockerfile's own steps, run without a container engine: each stage in a root of its own, by mounts and chroot.

What the base image would bring (the system's libraries and a Python) is lent by this machine, read-only. Everything
else of a stage is what the instructions put there. Needs root.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.architecture.dockerfile import Instruction, stages
from tests.architecture.sources import ROOT

__all__ = ["Image", "can_emulate"]

_LENT = ("bin", "lib", "lib32", "lib64", "sbin", "usr")
# What resolves names and checks certificates, and what groupadd and useradd read.
_OF_ETC = ("alternatives", "ca-certificates", "host.conf", "hosts", "ld.so.cache", "login.defs", "nsswitch.conf")
_OF_ETC += ("pip.conf", "resolv.conf", "ssl", "xdg")
# What says how the network is reached from here; nothing else of this environment gets in.
_NETWORK = ("PIP_", "SSL_", "HTTP_", "HTTPS_", "NO_", "http_", "https_", "no_")
# The base image's Python, by the name that it has there.
_PYTHON = "/python"
_ENTER = """
set -eu
root=$1 base=$2 user=$3 folder=$4 writable=$5; shift 5
mount --bind "$root" "$root"
for name in LENT; do
  [ -d "/$name" ] || continue
  if [ -L "/$name" ]; then continue; fi
  mount --bind "/$name" "$root/$name"; mount -o remount,bind,ro "$root/$name"
done
case "$base" in /usr|/usr/*) ;; *) mount --bind "$base" "$root$base"; mount -o remount,bind,ro "$root$base";; esac
mount --rbind /dev "$root/dev"; mount --rbind /proc "$root/proc"
if [ -n "$writable" ]; then
  mount --bind "$root$writable" "$root$writable"; mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mount -o remount,bind,ro "$root"
fi
exec chroot --userspec="$user" "$root" /bin/sh -c 'cd "$0"; exec "$@"' "$folder" "$@"
""".replace("LENT", " ".join(_LENT))


@cache
def can_emulate() -> bool:
    """Whether this process may mount, in a mount namespace of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True).returncode == 0


class Image:
    """The last stage, built; what runs in it finds its root read-only beside ``/data`` and ``/tmp``."""

    def __init__(self) -> None:
        # Not where pytest keeps its files: others than root must get in.
        self._folder = Path(tempfile.mkdtemp(prefix="loadmaster-image-"))
        self._folder.chmod(0o755)
        try:
            self._stages: dict[str, _Stage] = {}
            for number, instructions in enumerate(stages()):
                stage = _Stage(self._folder / str(number), self._stages)
                for instruction in instructions:
                    stage.follow(instruction)
                self._stages[stage.name or str(number)] = stage
        except BaseException:
            self.remove()
            raise
        self._last = stage
        self.user_id = int(stage.user.partition(":")[0])

    def start(self, *command: str, environment: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """What ``docker run --read-only --tmpfs /tmp`` starts: the entry point with these words, else its own."""
        words = [*self._last.entry_point, *(command or self._last.command)]
        return self._last.start(words, {**self._last.environment, **(environment or {})}, writable="/data", **options)

    def execute(self, *command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """What ``docker exec`` does."""
        both = {**self._last.environment, **(environment or {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self._last.start(list(command), both, writable="/data", **pipes) as running:
            output, errors = running.communicate(timeout=120)
        return subprocess.CompletedProcess(command, running.returncode, output, errors)

    def health(self, environment: dict[str, str]) -> bool:
        """What HEALTHCHECK finds."""
        return self.execute(*self._last.health_check, environment=environment).returncode == 0

    def processes(self) -> set[int]:
        """The ids of all that run in it."""
        return {int(process.name) for process in Path("/proc").glob("[0-9]*") if self._last.is_root_of(process)}

    def remove(self) -> None:
        """Give the disk back."""
        shutil.rmtree(self._folder)


class _Stage:
    def __init__(self, root: Path, earlier: dict[str, _Stage]) -> None:
        self._root, self._earlier = root, earlier
        self.name, self.user, self.folder = "", "0:0", "/"
        self.environment = {"PATH": f"{_PYTHON}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        self.entry_point: list[str] = []
        self.command: list[str] = []
        self.health_check: list[str] = []
        self._make_base()

    def inside(self, path: str) -> Path:
        """A path of this stage, seen from outside; relative ones lie in the working folder."""
        return self._root / os.path.join(self.folder, path).lstrip("/")

    def is_root_of(self, process: Path) -> bool:
        """Whether that process of /proc runs here."""
        try:
            return (process / "root").samefile(self._root)
        except OSError:
            # It has ended, or is a zombie, or is the kernel's.
            return False

    def follow(self, instruction: Instruction) -> None:
        word, rest = instruction.word, instruction.rest
        if word == "FROM":
            self.name = rest.partition(" AS ")[2]
        elif word == "ENV":
            for name, value in instruction.assigned().items():
                self.environment[name] = value.replace("${PATH}", self.environment["PATH"])
        elif word == "WORKDIR":
            self.folder = rest
            self.inside(rest).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            self._copy(instruction)
        elif word == "RUN":
            self._run(["/bin/sh", "-c", rest])
        elif word == "USER":
            self.user = rest
        elif word == "ENTRYPOINT":
            self.entry_point = json.loads(rest)
        elif word == "CMD":
            self.command = json.loads(rest)
        elif word == "HEALTHCHECK":
            self.health_check = json.loads(rest.partition("CMD ")[2])
        elif word not in ("LABEL", "VOLUME", "EXPOSE", "STOPSIGNAL"):
            raise NotImplementedError(word)

    def start(
        self, command: list[str], environment: dict[str, str], *, writable: str, **options: Any
    ) -> subprocess.Popen[str]:
        entered = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", _ENTER, "sh"]
        entered += [str(self._root), sys.base_prefix, self.user, self.folder, writable]
        return subprocess.Popen([*entered, *command], env=environment, text=True, **options)

    def _run(self, command: list[str]) -> None:
        network = {name: value for name, value in os.environ.items() if name.startswith(_NETWORK)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with self.start(command, {**network, **self.environment}, writable="", **pipes) as running:
            output, _ = running.communicate()
        if running.returncode:
            raise RuntimeError(f"{shlex.join(command)}:\n{output}")

    def _copy(self, instruction: Instruction) -> None:
        sources, target = instruction.copied()
        if sources:
            found = [ROOT / source for source in sources]
        else:
            flag, *words, target = shlex.split(instruction.rest)
            stage = self._earlier[flag.removeprefix("--from=")]
            found = [stage.inside(word) for word in words]
        for source in found:
            place = self.inside(target)
            if source.is_dir():
                shutil.copytree(
                    source, place, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)

    def _make_base(self) -> None:
        self._root.mkdir()
        for name in (*_LENT, "dev", "proc", "tmp", "var", "etc", sys.base_prefix.lstrip("/")):
            here, there = Path("/", name), self._root / name
            if here.is_symlink():
                there.symlink_to(os.readlink(here))
            else:
                there.mkdir(parents=True, exist_ok=True)
        (self._root / "tmp").chmod(0o1777)
        etc = self._root / "etc"
        (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (etc / "group").write_text("root:x:0:\n")
        for name in _OF_ETC:
            source = Path("/etc", name)
            if source.is_dir():
                shutil.copytree(source, etc / name, symlinks=True, ignore=shutil.ignore_patterns("private"))
            elif source.exists():
                shutil.copy(source, etc / name)
        self._run([f"{sys.base_prefix}/bin/python3", "-m", "venv", _PYTHON])
