// Package web is the console: pages on the admin listener, below /admin/. It is a client of the admin API inside the
// process, so that it can do nothing that the API can't, and what it shows is what `iop` shows.
//
// Pages are rendered here (html/template); the browser replaces parts of them every few seconds (htmx, with idiomorph
// so that focus and selection stay) and draws charts (uPlot). All of it is embedded; nothing is loaded from elsewhere,
// and no script stands in a page.
package web
