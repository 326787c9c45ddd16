#!/usr/bin/env bash
# Install the official SDKs that the end-to-end tests drive, at the versions pinned beside this file:
#
#   .cache/sdk/python     a virtual environment with openai from PyPI      (requirements.txt)
#   .cache/sdk/openai6    node_modules with openai 6.x from npm            (openai6/package-lock.json)
#   .cache/sdk/openai7    node_modules with openai 7.x from npm            (openai7/package-lock.json)
#
# Each is redone when what it was made from changes; otherwise this takes no time. openai-go is in go.mod.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$here/../../.cache/sdk
mkdir -p "$cache"
cd "$cache"

# One setup at a time, where the system can say so.
if command -v flock >/dev/null; then
	exec 9>lock
	flock 9
fi

# The note is written last, so a part that was interrupted is redone.
digest() { cat "$@" | cksum; }
is_made() { [[ -x $1 && -f $1.made && $(<"$1.made") == "$(digest "${@:2}")" ]]; }
made() { digest "${@:2}" >"$1.made"; }

if ! is_made python "$here/requirements.txt"; then
	echo "sdk: openai for Python"
	rm -rf python
	python3 -m venv python
	python/bin/pip install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
	made python "$here/requirements.txt"
fi

for name in openai6 openai7; do
	from=("$here/$name/package.json" "$here/$name/package-lock.json" "$here/$name/.npmrc")
	if ! is_made "$name" "${from[@]}"; then
		echo "sdk: $name for Node.js"
		rm -rf "$name"
		mkdir "$name"
		cp "${from[@]}" "$name"
		# 7.x asks for Node.js 22 and runs on 20 as well; npm only warns.
		npm ci --prefix "$name" --ignore-scripts --no-audit --no-fund --loglevel=error
		made "$name" "${from[@]}"
	fi
done
