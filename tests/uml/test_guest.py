"""The harness itself: what a guest may do, and what it leaves behind on the host."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from uml.guest import PROJECT, GuestError, boot, boot_systemd, run_python

pytestmark = pytest.mark.uml


def guest_processes() -> set[str]:
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return {line for line in listing.splitlines() if "lachesis-uml-" in line}


def guest_directories() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("lachesis-uml-*")}


def test_a_script_runs_on_a_kernel_of_its_own_with_the_cpu_controller() -> None:
    result = boot("uname -r; cat /sys/fs/cgroup/cgroup.controllers; exit 3")
    kernel, controllers = result.output.splitlines()
    assert kernel != os.uname().release
    assert "cpu" in controllers.split()
    assert result.exit_code == 3
    with pytest.raises(GuestError, match="ended with 3"):
        result.check()


def test_what_the_guest_writes_stays_in_the_guest(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("host\n")
    output = boot(
        f"""
        cat {victim}
        echo guest >{victim}; cat {victim}
        touch {tmp_path}/new /etc/lachesis-guest-was-here && echo written
        mkdir /tmp/hostfs && mount -t hostfs -o / hostfs /tmp/hostfs
        echo worse >/tmp/hostfs{victim} || echo refused
        """
    ).check()
    assert output.splitlines()[:3] == ["host", "guest", "written"]
    if os.geteuid() == 0:
        assert output.splitlines()[-1] == "refused"
    assert victim.read_text() == "host\n"
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    assert not Path("/etc/lachesis-guest-was-here").exists()


def test_a_guest_that_hangs_is_ended_and_leaves_nothing_behind() -> None:
    directories, processes = guest_directories(), guest_processes()
    with pytest.raises(GuestError, match=r"(?s)did not end within 6 s.*still here"):
        boot("echo still here; (sleep 1000 & sleep 1000 & wait)", timeout_s=6)
    assert guest_processes() <= processes
    assert guest_directories() <= directories


def test_a_guest_that_panics_is_reported_with_what_it_printed() -> None:
    processes = guest_processes()
    with pytest.raises(GuestError, match=r"(?s)ended before its script did.*Trigger a crash"):
        boot("echo c >/proc/sysrq-trigger; sleep 60", timeout_s=30)
    assert guest_processes() <= processes


def test_the_python_of_this_project_runs_in_the_guest() -> None:
    program = "import lachesis_py, socket, sys; socket.create_server(('127.0.0.1', 0)); print(lachesis_py.__file__)"
    assert Path(run_python(["-c", program]).check().strip()).parent == PROJECT / "lachesis_py"


def test_systemd_is_the_first_process_when_asked_for() -> None:
    output = boot_systemd("cat /proc/1/comm /etc/lachesis-x; systemd-detect-virt", files={"/etc/lachesis-x": "hi\n"})
    assert output.check().split() == ["systemd", "hi", "uml"]
