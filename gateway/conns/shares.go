package conns

// How the descriptors of the process are divided.
const (
	// ownFiles are kept for what is not a connection: the state's six database connections with two files each and their
	// temporary files, listeners, epoll, the lock, log and standard streams, configuration and certificates that are read
	// again, and connections that are closed but still have a descriptor.
	ownFiles = 64
	// maxFiles is how many descriptors are counted on at most. Beyond it memory runs out first: a connection with its
	// buffers and goroutines takes about 30 KiB.
	maxFiles = 1 << 16
	// unknownFiles is counted on where the system does not say: the least that supported systems give a process.
	unknownFiles = 1024
	// leastPlaces is what each share has however few descriptors there are.
	leastPlaces = 8
	// mostAdmin is enough for operators, their scripts and Prometheus.
	mostAdmin = 256
)

// Limits are how many connections a listener has at once.
type Limits struct {
	Clients   int // whose request was let in
	PerSource int // of these, from one source; loopback excepted
	Tunnels   int // that were upgraded
	Fresh     int // beyond both: a new connection always finds at least so many places not taken by the others
}

// Total is how many connections there are at most.
func (l Limits) Total() int { return l.Clients + l.Tunnels + l.Fresh }

// Shares are the Limits of all listeners of a process.
type Shares struct {
	Files  int // descriptors that were divided
	Public Limits
	Tunnel Limits // managed mode, where Nodes have a listener of their own
	Admin  Limits
}

// Divide divides the descriptors of a process among its listeners. With managed, Nodes do not come to the public one.
func Divide(files int, managed bool) Shares {
	files = min(files, maxFiles)
	rest := max(files-ownFiles, 8*leastPlaces)
	admin := min(max(rest/16, leastPlaces), mostAdmin)
	tunnels, fresh := max(rest/4, leastPlaces), max(rest/8, leastPlaces)
	clients := rest - admin - tunnels - fresh
	s := Shares{
		Files:  files,
		Public: Limits{Clients: clients, PerSource: clients / 2, Tunnels: tunnels, Fresh: fresh},
		Admin:  Limits{Clients: admin - admin/4, PerSource: admin, Fresh: admin / 4},
	}
	if managed {
		s.Public.Tunnels, s.Public.Fresh = 0, fresh-fresh/2
		s.Tunnel = Limits{Tunnels: tunnels, Fresh: fresh / 2}
	}
	return s
}

// OfProcess divides the descriptors that this process may have.
func OfProcess(managed bool) Shares {
	files, known := fileLimit()
	if !known {
		files = unknownFiles
	}
	return Divide(files, managed)
}

// FilesFor is how many descriptors, as a power of two, give clients so many places; the most that are counted on if none
// does.
func FilesFor(clients int) int {
	files := 2 * ownFiles
	for files < maxFiles && Divide(files, false).Public.Clients < clients {
		files *= 2
	}
	return files
}
