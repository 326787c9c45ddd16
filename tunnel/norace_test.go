//go:build !race

package tunnel

// raceDetector is set where everything takes several times as long.
const raceDetector = false
