package sim

import "encoding/json"

func exampleOf(schema json.RawMessage) string { return "{}" }
