// Package page holds the test of the page of kubectl flexlvm ui for a cluster of 1,000 nodes,
// on a real API server. What the nodes report is made up; the plugin and the browser are real.
package page
