package admission

// heapItem is what a heap holds: something that is ordered and knows where it stands.
type heapItem[T any] interface {
	before(T) bool
	index() *int // of the item in its heap; only the heap writes it
}

// ordered is a binary heap any of whose items can be taken out.
type ordered[T heapItem[T]] []T

func (h *ordered[T]) push(x T) {
	*x.index() = len(*h)
	*h = append(*h, x)
	h.up(len(*h) - 1)
}

func (h *ordered[T]) remove(i int) {
	last := len(*h) - 1
	h.swap(i, last)
	var none T
	(*h)[last] = none
	*h = (*h)[:last]
	if i < last {
		h.fix(i)
	}
}

// fix moves the item at i to where it belongs after its order has changed.
func (h *ordered[T]) fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

func (h *ordered[T]) swap(i, j int) {
	s := *h
	s[i], s[j] = s[j], s[i]
	*s[i].index(), *s[j].index() = i, j
}

func (h *ordered[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !(*h)[i].before((*h)[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *ordered[T]) down(i int) (moved bool) {
	for {
		child := 2*i + 1
		if child >= len(*h) {
			return moved
		}
		if right := child + 1; right < len(*h) && (*h)[right].before((*h)[child]) {
			child = right
		}
		if !(*h)[child].before((*h)[i]) {
			return moved
		}
		h.swap(i, child)
		i, moved = child, true
	}
}
