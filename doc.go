// Package replumb is the root of the module. It holds nothing but this comment: start at cmd/replumb and
// internal/migrations/servicecidr/plan.go, where the phases of a Service CIDR migration stand in order.
package replumb
