package admission_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"iop/gateway/admission"
	"iop/openai"
)

// able is an offer of m with what it can run.
func able(capacity int, runs admission.Kinds, raw ...openai.OpID) []admission.Offer {
	list := offer(capacity, "m")
	list[0].Runs = runs
	for _, op := range raw {
		list[0].Raw = list[0].Raw.With(op)
	}
	return list
}

func asks(op openai.OpID, kinds admission.Kinds) admission.Request {
	return admission.Request{Route: to("m"), Op: op, Kinds: kinds}
}

func TestOnlyPlacesThatHaveTheOperation(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("chats", 1, 0, nil, able(8, 0, openai.OpChatCompletions))
	c.Offer("embeds", 1, 0, nil, able(8, 0, openai.OpEmbeddings))
	for range 8 {
		ticket, _, err := c.Acquire(asks(openai.OpEmbeddings, admission.EveryKind))
		if err != nil || ticket.Target.Node != "embeds" || ticket.Normalized {
			t.Fatalf("%+v, %v", ticket, err)
		}
	}
	queue(t, c, asks(openai.OpEmbeddings, 0)).Leave()
	if ticket, _, err := c.Acquire(asks(openai.OpChatCompletions, 0)); err != nil || ticket.Target.Node != "chats" {
		t.Errorf("%+v, %v", ticket, err)
	}
	for _, op := range []openai.OpID{openai.OpRerank, openai.OpMessages} {
		if _, _, err := c.Acquire(asks(op, admission.EveryKind)); !errors.Is(err, admission.ErrUnsupported) {
			t.Errorf("%v: %v", op, err)
		}
	}
}

func TestNormalizedWhereItMust(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, able(4, admission.KindOllama, openai.OpOllamaChat))
	for _, tt := range []struct {
		req        admission.Request
		normalized bool
		err        error
	}{
		{req: asks(openai.OpOllamaChat, admission.EveryKind)},
		{req: asks(openai.OpMessages, admission.EveryKind), normalized: true},
		{req: asks(openai.OpMessages, admission.EveryKind&^admission.KindOllama), err: admission.ErrUnsupported},
		{req: asks(openai.OpEmbeddings, 0), err: admission.ErrUnsupported},
	} {
		ticket, _, err := c.Acquire(tt.req)
		if !errors.Is(err, tt.err) || tt.err == nil && (ticket.Normalized != tt.normalized || ticket.Kind != admission.KindOllama) {
			t.Errorf("%v: %+v, %v", tt.req.Op, ticket, err)
		}
	}
}

// A place that becomes free goes to the first in line that it can serve; who is before that one keeps its place in line.
func TestQueueOfDifferentOperations(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("chats", 1, 0, nil, able(1, 0, openai.OpChatCompletions))
	c.Offer("embeds", 1, 0, nil, able(1, 0, openai.OpEmbeddings))
	chat, _, _ := c.Acquire(asks(openai.OpChatCompletions, 0))
	embed, _, _ := c.Acquire(asks(openai.OpEmbeddings, 0))
	var embeds, chats []*admission.Waiter
	for range 3 {
		embeds = append(embeds, queue(t, c, asks(openai.OpEmbeddings, 0)))
		chats = append(chats, queue(t, c, asks(openai.OpChatCompletions, 0)))
	}
	for i := range 3 {
		chat.Release()
		if chat = result(t, chats[i]); chat.Target.Node != "chats" || answered(embeds[0]) {
			t.Fatalf("%d: %+v", i, chat)
		}
	}
	for i := range 3 {
		embed.Release()
		if embed = result(t, embeds[i]); embed.Target.Node != "embeds" {
			t.Fatalf("%d: %+v", i, embed)
		}
	}
	chat.Release()
	embed.Release()
	wantIdle(t, c)
}

// What a Node finds out about its provider later counts from then on, for those who wait too.
func TestAbilityChanges(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, able(1, 0, openai.OpChatCompletions))
	if _, _, err := c.Acquire(asks(openai.OpResponses, 0)); !errors.Is(err, admission.ErrUnsupported) {
		t.Fatal(err)
	}
	ticket, _, _ := c.Acquire(asks(openai.OpChatCompletions, 0))
	w := queue(t, c, asks(openai.OpChatCompletions, 0))
	c.Offer("n", 1, 0, nil, able(1, 0, openai.OpResponses))
	ticket.Release()
	if !answered(w) {
		t.Fatal("it waits for a place that can't run it, and there is no other")
	}
	if _, err := w.Result(); !errors.Is(err, admission.ErrUnsupported) {
		t.Error(err)
	}
	if ticket, _, err := c.Acquire(asks(openai.OpResponses, 0)); err != nil {
		t.Fatal(err)
	} else {
		ticket.Release()
	}
	wantIdle(t, c)
}

// Who waits for a model that nobody has offered yet hears at once when it turns out that nothing can run what is asked.
func TestWaitingEndsWhenAllIsKnown(t *testing.T) {
	c := admission.New(admission.Config{})
	defer c.Close()
	w := queue(t, c, asks(openai.OpEmbeddings, 0))
	c.Offer("n", 1, 0, nil, able(1, 0, openai.OpChatCompletions))
	if !answered(w) {
		t.Fatal("it still waits")
	}
	if _, err := w.Result(); !errors.Is(err, admission.ErrUnsupported) {
		t.Error(err)
	}
	wantIdle(t, c)
}

// A Node that is lost may come back: what it alone could run is waited for a while, and no longer.
func TestLostNodeIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		defer c.Close()
		c.Offer("chats", 1, 0, nil, able(1, 0, openai.OpChatCompletions))
		c.Offer("embeds", 1, 0, nil, able(1, 0, openai.OpEmbeddings))
		c.Remove("embeds", 1)
		w := queue(t, c, asks(openai.OpEmbeddings, 0))
		time.Sleep(10 * time.Second)
		c.Offer("embeds", 2, 0, nil, able(1, 0, openai.OpEmbeddings))
		result(t, w).Release()
		c.Remove("embeds", 2)
		w = queue(t, c, asks(openai.OpEmbeddings, 0))
		time.Sleep(31 * time.Second)
		if !answered(w) {
			t.Fatal("it still waits")
		}
		if _, err := w.Result(); !errors.Is(err, admission.ErrUnsupported) {
			t.Error(err)
		}
		if _, _, err := c.Acquire(asks(openai.OpEmbeddings, 0)); !errors.Is(err, admission.ErrUnsupported) {
			t.Error(err)
		}
		wantIdle(t, c)
	})
}
