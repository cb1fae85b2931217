// Package helm tests the chart with Helm's own library. It is a module of its own, since the product needs nothing of it.
package helm
