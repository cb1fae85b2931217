// Package chart tests the chart with Helm's own library.
package chart
