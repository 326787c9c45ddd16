#!/usr/bin/env bash
# Build SPIRE's server and agent for the test of managed mode on them (make test-spire), with go alone, from the module
# github.com/spiffe/spire at the version below. It takes half an hour of one core the first time, then nothing; needs a C
# compiler (its SQLite) and 4 GB of disk. Everything lands in .cache/spire at the root of the repository.
set -euo pipefail

version=v1.13.3

here=$(cd "$(dirname "$0")" && pwd)
cache=$here/../../.cache/spire
mkdir -p "$cache"
cd "$cache"

command -v cc >/dev/null || { echo "spire: a C compiler is missing: install one first" >&2; exit 1; }
if [[ -f made && $(<made) == "$version" ]]; then
	exit
fi

# Its own list of versions, so that it is built as it was released. In a module beside it, for "go install" would ask for
# the list of all its versions.
module=$(go mod download -json "github.com/spiffe/spire@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
mkdir -p build
sed 's/^module .*/module build/' "$module/go.mod" >build/go.mod
cp "$module/go.sum" build/go.sum
chmod u+w build/go.mod build/go.sum
cd build
go mod edit -require="github.com/spiffe/spire@$version"
for program in spire-agent spire-server; do
	echo "spire: $program"
	GOFLAGS=-mod=mod nice -n 10 go build -o "../$program" "github.com/spiffe/spire/cmd/$program"
done
cd ..
rm -rf build
echo "$version" >made
