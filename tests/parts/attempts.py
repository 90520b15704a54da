"""The attempts of hostile code, and the files of hostile repositories.

In: a `HostileProject`. Out: a script with every attempt, and files by name. Each line is one attempt, so they are long.
"""
# ruff: noqa: E501

from __future__ import annotations

from parts import traps
from parts.traps import HostileProject

READ = """
cat {o}/secret.txt ../outside/secret.txt outdir/secret.txt out.txt chain1/secret.txt {o}/{name} {s}/secret.txt
cat /proc/1/root{o}/secret.txt /proc/self/root{o}/secret.txt /proc/self/cwd/../outside/secret.txt slash{o}/secret.txt
cat /proc/[0-9]*/environ | tr '\\0' '\\n'; cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'; cat self/environ
env; export -p; cat /etc/passwd /etc/shadow
ls -la {o} .. {s} outdir /proc/1/root/ /proc/1/cwd/ ../.. /tmp; stat {o}/big ../outside/deep; du -b {o}/big
find / -xdev -name '{name}' -o -xdev -size {size}c; echo {o}/* {s}/*
cat .toolcrib/runs/log.txt .toolcrib/runs/* runs/log.txt own/runs/log.txt; ls -la .toolcrib/runs; head -c 100 .toolcrib/*/*
for fd in /proc/self/fd/* /dev/fd/* fds/*; do head -c 200 $fd/secret.txt; head -c 200 $fd/../outside/secret.txt; done
ln -s {o}/secret.txt l1; cat l1; ln {o}/secret.txt l2; cat l2; ln -s {o} l3; ls l3/; cp -r {o} stolen; tar cf - {o}
mkdir m; mount --bind {o} m; ls m; unshare -Ur cat {o}/secret.txt; nsenter -t 1 -m cat {o}/secret.txt; chroot /proc/1/root ls
git --git-dir={o} status; git -C {o} status; git diff --no-index /dev/null {o}/secret.txt; grep -r . {o}; rg . {o}
exec 9<{o}/secret.txt && cat <&9; source {o}/secret.txt; . outdir/secret.txt; enable -f {o}/secret.txt x; mapfile x <{o}/secret.txt
"""
WRITE = """
echo x >> {o}/secret.txt; echo x > {o}/made; echo x > ../outside/made; echo x > outdir/made; echo x > out.txt; echo x > gone.txt
echo x > ../made; echo x > {s}/made; mkdir {o}/made ../made2; mkdir -p gonedir/x; touch {o}/big ../outside; chmod 777 {o} {o}/big outdir/deep
rm -rf {o}/deep ../outside/big outdir/deep; mv {o}/big .; mv notes.txt {o}/; ln notes.txt {o}/made; ln -s x {o}/made; ln -s x ../made
truncate -s 0 {o}/secret.txt out.txt; tee {o}/made updir/made < notes.txt; dd if=notes.txt of=outdir/secret.txt; sed -i s/C/D/ outdir/secret.txt
cd .. && echo x > made3; cd {o} && echo x > made; pushd /proc/1/root{o} && touch made; ( cd - && touch made )
git init {o}/made; git clone . {o}/made; git worktree add {o}/made; git archive -o {o}/made HEAD; git bundle create {o}/made HEAD
chown 1 {o} outdir; setfattr -n user.x -v y {o}/big; mkfifo {o}/made; mknod {o}/made c 1 3; kill -9 1
"""
RUN = """
{o}/marker; sh {o}/marker; ./marker; marker; PATH={o}:$PATH marker; exec -a x {o}/marker; outdir/marker; /proc/1/root{o}/marker
LD_PRELOAD={o}/marker true; BASH_ENV={o}/marker bash -c true; ENV={o}/marker sh -ic true; GIT_SSH={o}/marker git fetch ssh://x/y
GIT_EXTERNAL_DIFF={o}/marker git diff; GIT_PAGER={o}/marker git -p log; PYTHONSTARTUP={o}/marker python3 -c 1; python3 {o}/marker
hash -p {o}/marker git; git --version; alias ls={o}/marker; trap {o}/marker EXIT; coproc {o}/marker; at now -f {o}/marker; crontab {o}/marker
"""
OWN = """
mkdir -p .toolcrib .git/hooks
for f in {files}; do echo 'network: true' > .toolcrib/$f; echo x > own/$f; cp notes.txt .toolcrib/$f; mv l4 .toolcrib/$f; done
for f in {files}; do ln -s ../notes.txt .toolcrib/$f; ln notes.txt .toolcrib/$f; dd if=notes.txt of=.toolcrib/$f; done
for f in {files}; do sed -i s/a/b/ .toolcrib/$f; done; python3 -c "for f in '{files}'.split(): open('.toolcrib/'+f,'w').write('x')"
mv .toolcrib away; rm -rf .toolcrib; rmdir .toolcrib; mkdir t; mv -T t .toolcrib; ln -sfn t .toolcrib; mv .git away.git; rm -rf .git; ln -sfn t .git
umount .toolcrib; mount -o remount,rw .toolcrib; mount -t tmpfs x .toolcrib; python3 -c "import os; os.rename('.toolcrib','t2')"
for f in hooks/pre-commit config info/attributes HEAD index description commondir; do echo x > .git/$f; echo x >> hooks/pre-commit; done
git config core.fsmonitor {o}/marker; git config --worktree core.hooksPath {o}; git config --global x.y z; git add notes.txt; chmod +w .git .toolcrib
echo x > .toolcrib/runs/new; echo x > .toolcrib/output/new; mkdir -p .toolcrib/output/x; rename s/toolcrib/x/ .toolcrib; mv ../$(basename $PWD) ../moved
"""
SCRIPT = f"{READ}\n{WRITE}\n{RUN}\n{OWN}"
PROOF = "THESCRIPTRAN"
FILES = "workspace.yml workspace.yaml workspace.json config.yml config.yaml config.json new"


def script(project: HostileProject) -> str:
    """Each line runs in its own shell, so that none ends the others. The script itself contains no leak."""
    name, size = f"{traps.NAME[:-1]}?", f"$(({traps.SIZE - 1}+1))"
    lines = SCRIPT.format(o=project.outside, s=project.sibling, name=name, size=size, files=FILES).splitlines()
    attempts = "\n".join(f"( {line}\n)" for line in lines if line)
    return f"{{\n{attempts}\n}} 2>&1 | tee printed | tail -c 9000\ncd {project.root}; touch ran-here\necho {PROOF}\n"


def files_of_pytest(project: HostileProject) -> dict[str, str]:
    outside = project.outside
    return {
        "pytest.ini": f"[pytest]\naddopts = --rootdir={outside} --confcutdir={outside} --junitxml={outside}/made.xml "
        f"--basetemp={outside}/deep -o cache_dir={outside}/deep @{outside}/secret.txt\n"
        f"testpaths = {outside}\npythonpath = {outside}\n",
    }


def files_of_conftest(project: HostileProject) -> dict[str, str]:
    outside = project.outside
    return {
        "conftest.py": f"import sys\nsys.path.insert(0, {str(outside)!r})\npytest_plugins = ['test_secret']\n"
        f"collect_ignore = []\nopen({f'{outside}/secret.txt'!r}).read()\n",
        "pyproject.toml": f"[tool.pytest.ini_options]\ntestpaths = [{str(outside)!r}]\ncache_dir = {str(outside)!r}\n",
        "tox.ini": f"[pytest]\naddopts = -p {outside}/marker\n",
        "sitecustomize.py": f"import os\nos.system({str(project.marker)!r})\n",
        "pytest.py": f"import os\nos.system({str(project.marker)!r})\n",
    }


def files_of_linters(project: HostileProject) -> dict[str, str]:
    outside = project.outside
    return {
        "ruff.toml": f'extend = "{outside}/secret.txt"\ncache-dir = "{outside}/deep"\n',
        "mypy.ini": f"[mypy]\nplugins = {outside}/test_secret.py\npython_executable = {project.marker}\n"
        f"cache_dir = {outside}/deep\nfiles = {outside}/test_secret.py\nmypy_path = {outside}\n"
        f"junit_xml = {outside}/made.xml\nany_exprs_report = {outside}/made\n",
        "ruff": f"#!/bin/sh\n{project.marker}\n",
        "mypy.py": f"import os\nos.system({str(project.marker)!r})\n",
    }


def files_of_git(project: HostileProject) -> dict[str, str]:
    marker, outside = project.marker, project.outside
    return {
        ".git/config": f"""
[core]
    repositoryformatversion = 0
    fsmonitor = {marker}
    hooksPath = {outside}
    worktree = {outside}
    pager = {marker}
    editor = {marker}
    sshCommand = {marker}
    attributesFile = {outside}/secret.txt
    excludesFile = {outside}/secret.txt
    gitProxy = {marker}
[include]
    path = {outside}/secret.txt
[filter "x"]
    clean = {marker}
    smudge = {marker}
    process = {marker}
    required = true
[diff]
    external = {marker}
[diff "x"]
    textconv = {marker}
    command = {marker}
[alias]
    status = !{marker}
    diff = !{marker}
[credential]
    helper = !{marker}
[gpg]
    program = {marker}
[status]
    submoduleSummary = true
""",
        ".gitattributes": "* filter=x diff=x\n",
        ".gitmodules": f'[submodule "m"]\n    path = src\n    url = {outside}\n    update = !{marker}\n',
        ".git/objects/info/alternates": f"{outside}\n",
        ".git/hooks/post-index-change": f"#!/bin/sh\n{marker}\n",
    }


def files_of_a_pointer(project: HostileProject) -> dict[str, str]:
    return {".git": f"gitdir: {project.outside}/repo/.git\n"}


def files_of_an_environment(project: HostileProject) -> dict[str, str]:
    marker, outside = project.marker, project.outside
    return {
        ".venv/pyvenv.cfg": f"home = {outside}\nexecutable = {marker}\ninclude-system-site-packages = true\n",
        ".venv/bin/python": f"-> {marker}",
        "venv": f"-> {outside}",
        "env/bin/python": f"#!{marker}\n",
        "env/pyvenv.cfg": f"home = {outside}\n",
        ".venv/lib/python3.11/site-packages/x.pth": f"import os; os.system('{marker}')\n{outside}\n",
    }


REPOSITORIES = {
    "pytest.ini": files_of_pytest,
    "conftest": files_of_conftest,
    "linters": files_of_linters,
    "git's configuration": files_of_git,
    "a pointer to a repository": files_of_a_pointer,
    "an environment": files_of_an_environment,
}
