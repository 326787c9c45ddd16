# The jobs of the compose file's profile "managed". Each may be done again: what is there stays.
#
#   managed.sh certificates     before the Edge starts: authority, certificates, master key
#   managed.sh slots            once it runs: the provider's key in a slot, and which Node may have it
#
# Keys that are made beside the authority, as here, are for trying things out; docs/managed-mode.md does it right.
set -eu

domain=iop.example.org

certificates() {
	[ -e ca/ca.pem ] || iop ca init --ca ca --trust-domain "$domain"
	# A month: who keeps the stack longer makes new ones with `down -v`.
	[ -e /run/edge/edge-main.pem ] || iop ca issue --ca ca --role edge --name main --gen-key --replace --ttl 720h --out /run/edge
	[ -e /run/node/node-node-1.pem ] || iop ca issue --ca ca --role node --name node-1 --gen-key --replace --ttl 720h --out /run/node
	iop ca bundle --ca ca > /run/edge/bundle.pem
	iop ca bundle --ca ca > /run/node/bundle.pem
	[ -e /run/edge/master-key ] || iop master-key create /run/edge/master-key
}

slots() {
	iop profile set sim --header authorization-bearer --base-url http://127.0.0.1:8490
	# The simulator takes this key and no other. A real one is not written into a file that everybody can read.
	iop slot show sim > /dev/null 2>&1 || echo sk-of-the-simulator | iop slot set sim --profile sim
	iop node-list allow node-1 --slots sim --profiles sim
}

"$1"
