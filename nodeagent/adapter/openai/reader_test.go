package openai

import (
	"testing"

	"iop/nodeagent/adapter"
	"iop/nodeagent/adapter/adaptertest"
)

func newReader() adapter.Reader { return New().Reader(adapter.Spec{Model: "m"}) }

func TestGolden(t *testing.T) { adaptertest.Golden(t, newReader) }

func TestHugeEvent(t *testing.T) { adaptertest.Huge(t, newReader, `data: {"id":"`) }

func FuzzReader(f *testing.F) { adaptertest.Fuzz(f, newReader) }
