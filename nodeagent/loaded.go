package nodeagent

import (
	"context"
	"net/http"
	"slices"
	"time"
)

// loadedAgain is the least time between two questions for what is loaded: models come and go in seconds, and each
// change is told to the Edge.
const loadedAgain = 3 * time.Second

// loadedModels are the models that a provider holds in memory.
type loadedModels struct {
	all   bool     // the engine cannot unload: what it serves it holds
	names []string // sorted; without all
}

func (l loadedModels) has(model string) bool {
	if l.all {
		return true
	}
	_, found := slices.BinarySearch(l.names, model)
	return found
}

func (l loadedModels) equal(m loadedModels) bool {
	return l.all == m.all && slices.Equal(l.names, m.names)
}

// loaded is what a list of models says of those in memory. Most say nothing: who lists a model has it there then.
// llama.cpp's router says it of each.
func (a answer) loaded() loadedModels {
	var list struct {
		Data []struct {
			ID     string
			Status struct{ Value string }
		}
	}
	if !a.into(&list) {
		return loadedModels{all: true} // or a status of another form
	}
	var names []string
	said := false
	for _, m := range list.Data {
		said = said || m.Status.Value != ""
		if m.Status.Value == "loaded" {
			names = append(names, m.ID)
		}
	}
	if !said {
		return loadedModels{all: true}
	}
	return loadedNames(names)
}

// askLoaded asks what the provider holds in memory; listed is what its list of models said. ok is false where it gave
// no answer that says so.
func (p *provider) askLoaded(ctx context.Context, listed loadedModels) (l loadedModels, ok bool) {
	var names []string
	switch p.engine() {
	case OllamaEngine:
		names, ok = p.askOllamaLoaded(ctx)
	case LMStudioEngine:
		names, ok = p.askLMStudioLoaded(ctx)
	default:
		return listed, true
	}
	return loadedNames(names), ok
}

func loadedNames(names []string) loadedModels {
	names = slices.DeleteFunc(names, func(name string) bool { return !validModel(name) })
	slices.Sort(names)
	names = slices.Compact(names)
	return loadedModels{names: names[:min(len(names), maxListed)]}
}

func (p *provider) askOllamaLoaded(ctx context.Context) (names []string, ok bool) {
	var list struct {
		Models []struct{ Name, Model string }
	}
	a, err := p.ask(ctx, pathOllamaLoaded)
	switch {
	case err != nil:
		return nil, false
	case a.status == http.StatusNotFound: // from before it could say
		return nil, true
	case !a.into(&list):
		return nil, false
	}
	for _, m := range list.Models {
		names = append(names, m.Name, m.Model) // the same, but for aliases
	}
	return names, true
}

func (p *provider) askLMStudioLoaded(ctx context.Context) (names []string, ok bool) {
	var list struct {
		Data []struct{ ID, State string }
	}
	a, err := p.ask(ctx, pathLMStudioModels)
	if err != nil || !a.into(&list) {
		return nil, false
	}
	for _, m := range list.Data {
		if m.State == "loaded" {
			names = append(names, m.ID)
		}
	}
	return names, true
}
