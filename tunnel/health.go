package tunnel

import "iop/tunnel/wire"

// HealthName returns how the admin API, logs and metrics write a provider's health: "ok", "hung", "gone", and "unknown" for
// all else.
func HealthName(h wire.Health) string {
	switch h {
	case wire.Health_HEALTH_OK:
		return "ok"
	case wire.Health_HEALTH_HUNG:
		return "hung"
	case wire.Health_HEALTH_GONE:
		return "gone"
	}
	return "unknown"
}
