#!/usr/bin/env bash
# Prepare what the browser's tests need: Chromium, from the system's packages where it is missing, and axe-core from npm
# at the version pinned in axe/package-lock.json, under .cache/axe. Redone when that changes; otherwise it takes no time.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$here/../../.cache
mkdir -p "$cache"
cd "$cache"

if [[ -z ${IOP_CHROMIUM:-} ]] && ! command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null; then
	if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
		echo "browser: there is no Chromium here, and it can't be installed; install it, or name one in IOP_CHROMIUM" >&2
		exit 1
	fi
	echo "browser: Chromium, by apt-get"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi

from=("$here/axe/package.json" "$here/axe/package-lock.json" "$here/axe/.npmrc")
want=$(cat "${from[@]}" | cksum)
if [[ ! -f axe.made || $(<axe.made) != "$want" ]]; then
	echo "browser: axe-core for the pages' accessibility"
	rm -rf axe axe.made
	mkdir axe
	cp "${from[@]}" axe
	npm ci --prefix axe --ignore-scripts --no-audit --no-fund --loglevel=error
	echo "$want" >axe.made
fi
