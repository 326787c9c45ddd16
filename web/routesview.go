package web

import (
	"net/http"

	"iop/gateway/admin"
)

// routesData is what the page of the routes and queues shows.
type routesData struct {
	Routes  []admin.Route
	Queues  []admin.Queue
	Config  admin.Configuration
	Outcome string
	Fault   *formFault
}

func (c *console) routesPage(w http.ResponseWriter, r *http.Request) error {
	return c.showRoutes(w, r, http.StatusOK, nil)
}

func (c *console) showRoutes(w http.ResponseWriter, r *http.Request, status int, fault *formFault) error {
	var routes listOf[admin.Route]
	var queues listOf[admin.Queue]
	var config admin.Configuration
	if err := c.api.get(r.Context(), "/routes", nil, &routes); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/queue", nil, &queues); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/config", nil, &config); err != nil {
		return err
	}
	data := routesData{Routes: routes.Data, Queues: queues.Data, Config: config, Outcome: outcome(r), Fault: fault}
	if isPart(r) {
		c.pages.part(w, "routes", "routes-live", data)
		return nil
	}
	c.pages.show(w, r, status, "routes", data)
	return nil
}

// reloadConfig reads the file of routes again.
func (c *console) reloadConfig(w http.ResponseWriter, r *http.Request) error {
	if err := c.api.post(r.Context(), "/config/reload", nil, nil); err != nil {
		if fault := refusedForm(err); fault != nil {
			return c.showRoutes(w, r, http.StatusUnprocessableEntity, fault)
		}
		return err
	}
	return done(w, r, "/admin/routes", "config-loaded")
}
