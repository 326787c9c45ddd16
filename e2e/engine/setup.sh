#!/usr/bin/env bash
# Prepare a real inference engine for the engine test: llama.cpp's llama-server, built here, and a small model for it.
#
#   e2e/engine/setup.sh         build what is missing (six minutes the first time on two idle cores, then nothing)
#   e2e/engine/run.sh 18080     start it on 127.0.0.1:18080, in the foreground; Ctrl-C or SIGTERM stops it
#
# What comes from where:
#   - The source is the copy of llama.cpp inside the llama-cpp-python source package, fetched with pip and checked against
#     the digest in sdist.txt. Only its llama-server is built, with no web UI, TLS or tests: nothing else is downloaded.
#   - The model is noise in the shape of a Llama, written by make_model.py from a fixed seed. It talks no sense; it
#     tokenizes, samples, batches and streams as a real one does. See that file for what it never says.
#
# Everything lands in .cache/engine at the root of the repository, which git ignores; remove it to start over. Each part
# is redone when what it was made from changes. Needs python3 with venv, cmake 3.21, make, a C++17 compiler and about 600 MB of disk.
#
#   IOP_ENGINE_JOBS    compilers at once (default 2)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$here/../../.cache/engine
jobs=${IOP_ENGINE_JOBS:-2}

mkdir -p "$cache"
cd "$cache"

say() { printf 'engine: %s\n' "$*"; }

for tool in python3 cmake c++ make tar sha256sum flock; do
	command -v "$tool" >/dev/null || {
		say "$tool is missing: install it first" >&2
		exit 1
	}
done

# One setup at a time: two would build in the same tree.
exec 9>lock
flock 9

# is_made NAME FILE... and made NAME FILE...: whether the part NAME was finished from these very files, and the note of it.
# The note is written last, so a part that was interrupted is redone.
digest() { cat "$@" | sha256sum; }
is_made() { [[ -f $1.made && $(<"$1.made") == "$(digest "${@:2}")" ]]; }
made() { digest "${@:2}" >"$1.made"; }

if ! is_made venv "$here/requirements.txt"; then
	say "python environment"
	rm -rf venv
	python3 -m venv venv
	venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
	made venv "$here/requirements.txt"
fi

if ! is_made source "$here/sdist.txt"; then
	say "llama.cpp source"
	rm -rf sdist source
	venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
		--require-hashes -d sdist -r "$here/sdist.txt"
	mkdir source
	tar -xzf sdist/*.tar.gz -C source --strip-components=3 --wildcards '*/vendor/llama.cpp'
	rm -rf sdist
	made source "$here/sdist.txt"
fi

# The portable instruction set, as the cache may outlive the machine that filled it. -O1 halves the wait for the compiler;
# the arithmetic is C and keeps its -O2. The build number is given because the build would otherwise take the one of the
# git repository around it, which is ours.
cat >options.next <<'OPTIONS'
-DCMAKE_BUILD_TYPE=Release
-DCMAKE_C_FLAGS_RELEASE=-O2 -DNDEBUG
-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG
-DBUILD_SHARED_LIBS=OFF
-DGGML_NATIVE=OFF
-DGGML_OPENMP=OFF
-DGGML_LLAMAFILE=OFF
-DGGML_CCACHE=OFF
-DLLAMA_OPENSSL=OFF
-DLLAMA_BUILD_TESTS=OFF
-DLLAMA_BUILD_EXAMPLES=OFF
-DLLAMA_BUILD_APP=OFF
-DLLAMA_BUILD_UI=OFF
-DLLAMA_USE_PREBUILT_UI=OFF
-DLLAMA_BUILD_NUMBER=1
-DLLAMA_BUILD_COMMIT=sdist
OPTIONS

if ! is_made server "$here/sdist.txt" options.next; then
	say "llama-server, with $jobs compilers (log: .cache/engine/build.log)"
	mapfile -t options <options.next
	if ! {
		cmake -S source -B build "${options[@]}" &&
			nice -n 19 cmake --build build --target llama-server --parallel "$jobs"
	} >build.log 2>&1; then
		tail -n 30 build.log >&2
		say "the build failed" >&2
		exit 1
	fi
	cp build/bin/llama-server llama-server.next
	mv llama-server.next llama-server
	made server "$here/sdist.txt" options.next
	# The objects are ten times the program. Whoever changes the options builds anew anyway.
	rm -rf build
fi
rm -f options.next

if ! is_made model "$here/make_model.py" "$here/requirements.txt"; then
	say "model"
	venv/bin/python "$here/make_model.py" model.gguf
	made model "$here/make_model.py" "$here/requirements.txt"
fi

say "ready"
