package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Names and values of which randomBody makes requests: those that decide something, and others that look like them.
var (
	randomNames = slices.Concat(readCounts, readLengths, []string{
		"model", "stream", "stream_options", "user", "session_id", "prompt_cache_key", "metadata", "options", "messages", "prompt", "input",
		"models", "fallbacks", "api_base", "temperature", "top_p", "stop", "tools", "x", "__proto__",
	})
	randomNumbers = []string{
		"1", "2", "5", "100", "101", "0", "-1", "-2", "-0", "-0.0", "0.5", "1.5", "1e2", "1E+2", "100.0", "1e-9", "1e400", "-1e400", "2.0", "3e0",
		"99999999999999999999999", "4294967297", "100.00000000000000000001", "1e1", "0e5",
	}
	randomOthers = []string{
		"null", "true", "false", `"5"`, `""`, `"true"`, `"a\u0041"`, `"\ud83d\ude00"`, `"\ud800"`, "[]", "[1]", `["a","b"]`, "{}", "[[1,2],[3]]", "\"\xff\"", `"é"`,
	}
	randomSpace = []string{"", "", "", " ", "\n", "\t \r\n"}
)

// randomBody returns a request that is mostly sound: each member has its own kind of value and its own name, but for one now
// and then.
func randomBody(rng *rand.Rand) []byte {
	space := func() string { return pick(rng, randomSpace) }
	var b strings.Builder
	b.WriteString(space() + "{" + space())
	names := []string{"model"}
	for range rng.IntN(7) {
		names = append(names, pick(rng, randomNames))
	}
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for i, name := range names {
		if i > 0 {
			b.WriteString("," + space())
		}
		b.WriteString(randomName(rng, name) + space() + ":" + space() + randomValue(rng, name) + space())
	}
	b.WriteString("}" + space())
	body := []byte(b.String())
	if rng.IntN(20) == 0 {
		body[rng.IntN(len(body))] = byte(rng.IntN(256))
	}
	return body
}

func pick(rng *rand.Rand, list []string) string { return list[rng.IntN(len(list))] }

// randomName writes a name, now and then in another form.
func randomName(rng *rand.Rand, name string) string {
	at := rng.IntN(len(name))
	before, letter, after := name[:at], name[at:at+1], name[at+1:]
	switch rng.IntN(80) {
	case 0:
		return `"` + before + strings.ToUpper(letter) + after + `"`
	case 1:
		return `"` + before + fmt.Sprintf(`\u%04x`, letter[0]) + after + `"`
	case 2:
		return `"` + before + "\xff" + letter + after + `"`
	case 3:
		return `"` + before + `\ud800` + letter + after + `"`
	case 4:
		return `"` + name + pick(rng, []string{`\u0000`, `\u0000x`, " ", "_"}) + `"`
	case 5:
		return `"` + strings.NewReplacer("s", "ſ", "k", "\u212a", "i", "ı").Replace(name) + `"`
	case 6:
		return `"` + strings.ReplaceAll(name, "_", pick(rng, []string{"", "-"})) + `"`
	case 7:
		return `"` + before + `\ud83d\ude00` + letter + after + `"`
	case 8:
		return `"` + strings.NewReplacer("st", "ﬅ", "ss", "ß", "m", "ｍ").Replace(name) + `"`
	}
	return `"` + name + `"`
}

// randomValue writes a value of the member's kind, now and then of another.
func randomValue(rng *rand.Rand, name string) string {
	if rng.IntN(25) == 0 {
		return pick(rng, append(randomNumbers, randomOthers...))
	}
	switch name {
	case "model":
		return `"m"`
	case "stream":
		return pick(rng, []string{"true", "false", "null"})
	case "user", "session_id", "prompt_cache_key":
		return pick(rng, []string{`"u"`, `"\u00e9"`, "null", `"\ud83d\ude00"`})
	case "stream_options":
		return randomObject(rng, "include_usage", []string{"true", "false", "null"})
	case "metadata":
		return randomObject(rng, "session_id", []string{`"s"`, "null", "5"})
	case "__proto__":
		return randomObject(rng, pick(rng, readLengths), randomNumbers)
	case "options":
		return randomObject(rng, "num_predict", randomNumbers)
	case "models", "fallbacks", "api_base":
		return pick(rng, []string{"null", "null", `"x"`})
	case "messages", "prompt", "input", "tools", "stop":
		return pick(rng, []string{"[]", `["a","b"]`, "[[1,2],[3]]", `"text"`, "null"})
	}
	return pick(rng, randomNumbers)
}

// randomObject writes an object with one known member, now and then twice or in another form.
func randomObject(rng *rand.Rand, name string, values []string) string {
	members := []string{`"x":1`}
	for range 1 + rng.IntN(8)/7 {
		written := `"` + name + `"`
		switch rng.IntN(12) {
		case 0:
			written = `"` + strings.ToUpper(name) + `"`
		case 1:
			written = `"` + name[:2] + `\ud800` + name[2:] + `"`
		}
		members = append(members, written+":"+pick(rng, values))
	}
	return "{" + strings.Join(members[rng.IntN(2):], ",") + "}"
}
