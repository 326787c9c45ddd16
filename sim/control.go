package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// controlRoutes adds the paths under /sim, through which a test orders and watches. They ask for no key.
func (s *Server) controlRoutes(m *http.ServeMux) {
	m.HandleFunc("GET /sim", serveHelp)
	m.HandleFunc("GET /sim/stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.Stats()) })
	m.HandleFunc("GET /sim/requests", s.serveRequests)
	m.HandleFunc("GET /sim/config", s.serveConfig)
	m.HandleFunc("POST /sim/config", s.changeConfig)
	m.HandleFunc("DELETE /sim/config", func(w http.ResponseWriter, r *http.Request) {
		s.clearConfig()
		s.serveConfig(w, r)
	})
	m.HandleFunc("PUT /sim/models", s.changeModels)
	m.HandleFunc("PUT /sim/loaded", s.changeLoaded)
	m.HandleFunc("PUT /sim/slots", s.changeSlots)
	m.HandleFunc("POST /sim/reset", func(w http.ResponseWriter, _ *http.Request) {
		s.clearConfig()
		s.ledger.rebase()
		s.slots.rebase()
		s.failures.forget()
		s.prefixes.forget()
		writeJSON(w, http.StatusOK, s.Stats())
	})
}

// serveHelp lists the knobs.
func serveHelp(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, Help())
}

// Help describes the control paths and every knob, one a line.
func Help() string {
	var b strings.Builder
	b.WriteString("Knobs: sim:key=value,key=value in `user` or `safety_identifier`, in `metadata.sim`, at the beginning of the\n" +
		"last user message, of `input` or of `prompt`, in form fields of these names, or in the header X-Sim.\n\n")
	for _, e := range knobTable {
		fmt.Fprintf(&b, "  %-22s %s\n", e.name, e.help)
	}
	b.WriteString("\nFaults: sim:fault=NAME, or sim:NAME, or sim:NAME=N for the N of `after`.\n\n")
	for _, f := range faultHelp {
		fmt.Fprintf(&b, "  %-22s %s\n", f[0], f[1])
	}
	b.WriteString("\nPaths:\n\n" +
		"  GET /sim/stats              counters and slots\n" +
		"  GET /sim/requests?n=10      the last requests as they arrived, newest first\n" +
		"  GET, POST, DELETE /sim/config   default knobs: {\"ttft\":\"2s\",\"fault\":null}\n" +
		"  PUT /sim/models             {\"models\":[\"a\",\"b\"]}\n" +
		"  PUT /sim/loaded             {\"models\":[\"a\"]}: these are in memory, and no others\n" +
		"  PUT /sim/slots              {\"slots\":4,\"queue\":0}\n" +
		"  POST /sim/reset             clear default knobs, counters, remembered requests and the prefix cache\n")
	return b.String()
}

func (s *Server) serveRequests(w http.ResponseWriter, r *http.Request) {
	n := ringSize
	if q := r.URL.Query().Get("n"); q != "" {
		v, err := strconv.Atoi(q)
		if err != nil || v < 1 {
			http.Error(w, "n must be a number above 0", http.StatusBadRequest)
			return
		}
		n = v
	}
	writeJSON(w, http.StatusOK, s.Requests(n))
}

func (s *Server) serveConfig(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	out := maps.Clone(s.defaults)
	s.mu.Unlock()
	if out == nil {
		out = map[string]string{}
	}
	writeJSON(w, http.StatusOK, out)
}

func (s *Server) changeConfig(w http.ResponseWriter, r *http.Request) {
	var changes map[string]any
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
	d.UseNumber()
	err := d.Decode(&changes)
	if err == nil {
		err = s.configure(changes)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.serveConfig(w, r)
}

func (s *Server) changeModels(w http.ResponseWriter, r *http.Request) {
	replaceModels(w, r, s.SetModels, s.Models)
}

func (s *Server) changeLoaded(w http.ResponseWriter, r *http.Request) {
	replaceModels(w, r, s.SetLoaded, s.Loaded)
}

// replaceModels gives the list in the request's body to set, and answers with the list that get then returns.
func replaceModels(w http.ResponseWriter, r *http.Request, set func([]string) error, get func() []string) {
	var in struct {
		Models []string `json:"models"`
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in)
	if err == nil {
		err = set(in.Models)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	writeJSON(w, http.StatusOK, map[string][]string{"models": get()})
}

func (s *Server) changeSlots(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Slots int `json:"slots"`
		Queue int `json:"queue"`
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in)
	if err == nil && (in.Slots < 1 || in.Slots > maxSlots || in.Queue < 0 || in.Queue > maxSlots) {
		err = fmt.Errorf("slots must be 1 to %d, queue 0 to %d", maxSlots, maxSlots)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.slots.resize(in.Slots, in.Queue)
	writeJSON(w, http.StatusOK, s.Stats())
}
