#!/usr/bin/env bash
# Install the official SDKs that the end-to-end tests drive, at the versions pinned beside this file:
#
#   .cache/sdk/python     a virtual environment with openai from PyPI      (requirements.txt)
#   .cache/sdk/openai6    node_modules with openai 6.x from npm            (openai6/package-lock.json)
#   .cache/sdk/openai7    node_modules with openai 7.x from npm            (openai7/package-lock.json)
#   .cache/sdk/matrix     node_modules of the client matrix                (clients/package-lock.json)
#   .cache/sdk/clients, clients-old   its virtual environments             (clients/requirements.txt, -old.txt)
#   .cache/sdk/forms, forms-node      what servers read forms with         (forms/requirements.txt, forms/package-lock.json)
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

# A virtual environment with what a file of requirements pins, and nothing else.
python_with() {
	local name=$1 pins=$2
	is_made "$name" "$pins" && return
	echo "sdk: $name for Python"
	rm -rf "$name"
	python3 -m venv "$name"
	"$name/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$pins"
	made "$name" "$pins"
}

# The node_modules of a package.json and its lock.
node_with() {
	local name=$1 from=("$2/package.json" "$2/package-lock.json" "$2/.npmrc")
	is_made "$name" "${from[@]}" && return
	echo "sdk: $name for Node.js"
	rm -rf "$name"
	mkdir "$name"
	cp "${from[@]}" "$name"
	# Some ask for Node.js 22 and run on 20 as well; npm only warns.
	npm ci --prefix "$name" --ignore-scripts --no-audit --no-fund --loglevel=error
	made "$name" "${from[@]}"
}

python_with python "$here/requirements.txt"
python_with clients "$here/clients/requirements.txt"
python_with forms "$here/forms/requirements.txt"
python_with clients-old "$here/clients/requirements-old.txt"
node_with openai6 "$here/openai6"
node_with openai7 "$here/openai7"
node_with matrix "$here/clients"
node_with forms-node "$here/forms"
