package page

import (
	"embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed assets
var assets embed.FS

// Everything from the cluster passes through html/template, which escapes it for its context. The views contain
// none of the types that html/template trusts and does not escape.
var templates = template.Must(template.ParseFS(assets, "assets/*.html"))

// A pageView is the view of a complete page.
type pageView struct {
	Title string
	Query query
	Live  live
	Found *found  // nil without a search
	Plan  *whatIf // nil without a hypothetical claim
	Time  string
}

func render(to io.Writer, name string, view any) error {
	if err := templates.ExecuteTemplate(to, name, view); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	return nil
}
