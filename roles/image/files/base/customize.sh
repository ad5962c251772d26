#!/bin/sh
# SPDX-License-Identifier: BSD-4-Clause
# Last step of mmdebstrap ($1: the new root): nothing of the build machine, no privileged program, no package lists.
set -eu
root=$1
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/log/*.log \
    "$root"/var/log/apt/* "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
# mmdebstrap copies both from the host. An image without them would get an unreadable empty file from "podman build";
# an empty resolv.conf of its own makes look-ups fail at once where nothing is mounted over it.
rm -f "$root"/etc/hostname "$root"/etc/resolv.conf
: >"$root"/etc/resolv.conf
printf '127.0.0.1\tlocalhost\n' >"$root"/etc/hosts
chmod 0644 "$root"/etc/resolv.conf "$root"/etc/hosts
# No set-uid or set-gid program: no-new-privileges makes them useless, and a scanner should not have to know that.
find "$root" -xdev -type f -perm /6000 -exec chmod a-s {} +
