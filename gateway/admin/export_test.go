package admin

// Endpoints returns the operations of the API, such as "GET /keys/{id}".
func Endpoints() []string {
	var names []string
	for _, e := range (&api{}).endpoints() {
		names = append(names, e.method+" "+e.path)
	}
	return names
}

// OpenAPI is the document.
var OpenAPI = openAPI

// RecordColumns are the columns of the CSV export.
var RecordColumns = recordColumns
