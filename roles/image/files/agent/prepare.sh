#!/bin/sh
# SPDX-License-Identifier: BSD-4-Clause
# What every agent image has, run as the last step of its build: the workload's user, its places, git's configuration.
set -eu
echo 'node:x:1000:1000::/home/node:/bin/bash' >>/etc/passwd
echo 'node:x:1000:' >>/etc/group
mkdir -p /home/node /workspace/repos /asf
chown 1000:1000 /home/node /workspace /workspace/repos
# Grants belong to the workload's uid under keep-id; a repository whose files belong to another uid must still open.
git config --system --add safe.directory '/workspace/repos/*'
find / -xdev -type f -perm /6000 -exec chmod a-s {} +
rm -rf /tmp/* /root/.cache /root/.npm
