// Package execution holds the words that both ends of the tunnel share about one run: its identifiers, the phase it
// has reached, how it ended, why, and what it used.
//
// It is the ground floor: it imports nothing but the standard library, it does no I/O and it knows neither HTTP nor
// the wire format. What may enter is vocabulary that Edge and Node must agree on to the letter. Codes and phases are
// append-only: they travel on the wire and stand in metrics, logs and the admin API.
package execution
