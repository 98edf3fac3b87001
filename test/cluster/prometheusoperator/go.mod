// The definitions of the Prometheus operator, which monitoring/ is applied with in a test.
// A module of its own, so that flexlvm's go.mod stays free of it; nothing of it is built.
module github.com/flexlvm/flexlvm/test/cluster/prometheusoperator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
