// Package ext is what others than Traefik extend its dynamic configuration by: nothing here, as upstream. Traefik's module replaces this
// one by a folder of its repository, which is not part of the published module.
package ext

// HTTP extends the HTTP part.
type HTTP struct{}

// Router extends each HTTP router.
type Router struct{}
