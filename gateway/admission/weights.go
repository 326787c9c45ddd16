package admission

// weights draws an index with a probability in proportion to its weight, and changes a weight, in O(log n): a Fenwick
// tree. tree[i-1] is the sum of the weights of (i - i&-i, i].
type weights struct{ tree []int64 }

// append adds an index of weight 0.
func (w *weights) append() {
	i := len(w.tree) + 1
	sum := int64(0)
	for j, end := i-1, i-i&-i; j > end; j -= j & -j {
		sum += w.tree[j-1]
	}
	w.tree = append(w.tree, sum)
}

// pop drops the last index, whose weight must be 0.
func (w *weights) pop() { w.tree = w.tree[:len(w.tree)-1] }

func (w *weights) add(index int, delta int64) {
	for i := index + 1; i <= len(w.tree); i += i & -i {
		w.tree[i-1] += delta
	}
}

func (w *weights) total() (sum int64) {
	for i := len(w.tree); i > 0; i -= i & -i {
		sum += w.tree[i-1]
	}
	return sum
}

// find returns the index in whose part of the total a point of [0, total) lies.
func (w *weights) find(point int64) int {
	step := 1
	for step*2 <= len(w.tree) {
		step *= 2
	}
	at := 0
	for ; step > 0; step /= 2 {
		if next := at + step; next <= len(w.tree) && w.tree[next-1] <= point {
			point -= w.tree[next-1]
			at = next
		}
	}
	return at
}
