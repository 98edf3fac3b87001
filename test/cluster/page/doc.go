// Package page holds the test of the page of kubectl flexlvm ui for a cluster of 1,000 nodes, on a real API server.
// The nodes' reports are synthetic; the plugin and the browser are real.
package page
