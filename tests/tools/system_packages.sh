#!/bin/sh
# Installs the Debian packages that the tests use and this machine lacks; where it may not, says what is missing.
# No service is started. On a machine that runs services (systemd) packages that bring some are installed on CI only.
PATH=$PATH:/usr/sbin:/sbin
missing='' packages=''

need() {  # PACKAGE COMMAND...
    package=$1
    shift
    for command; do
        command -v "$command" >/dev/null && continue
        missing="$missing $command"
        packages="${packages% "$package"} $package"
    done
}

need openssh-server sshd
need slurm-wlm slurmctld slurmd srun
need munge munged
need prometheus prometheus promtool
need prometheus-alertmanager prometheus-alertmanager amtool
need systemd systemctl
need systemd-container systemd-nspawn
if [ -d /run/systemd/system ] && [ "$HANGDOC_NO_SKIP" != 1 ]; then
    [ -n "$packages" ] && echo "not installed by itself, as services come with it: apt-get install$packages"
    packages=''
fi
need iproute2 ip tc
need iptables iptables
need faketime faketime
need g++ g++
need openssh-client ssh ssh-keygen
need chromium chromium

[ -z "$packages" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tests that need$missing will say so; ask root for: apt-get install$packages"
    exit 0
fi
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
fi
{
    apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages >/dev/null
} || echo "could not install$packages; tests that need$missing will say so"
