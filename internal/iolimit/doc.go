// Package iolimit applies the I/O limits in the annotations of volumes to the control groups of
// pods. What to write is a pure function of the desired and the observed limits (plan.go).
package iolimit
