"""A user with CREATE on `public` who defines whatever fits a statement of ours better than what PostgreSQL has.

An operator in `public` is chosen where PostgreSQL has none for exactly these types, such as numeric % integer; a
function where PostgreSQL's takes any type, such as unnest(anyarray). Each of them fails: "hijacked".
"""

from __future__ import annotations

HIJACK = """
do $hostile$
declare
    types   text[] := array['smallint', 'integer', 'bigint', 'numeric', 'real', 'float8', 'text', 'varchar', 'name',
                            'jsonb', 'timestamptz', 'date', 'interval'];
    compare text[] := array['=', '<>', '<', '<=', '>', '>='];
    compute text[] := array['%', '+', '-', '*', '/', '||', '->', '->>', '?', '~', '@>'];
    body    text   := 'language plpgsql immutable as $$ begin raise exception ''hijacked''; end $$';
    l text; r text; o text;
begin
    foreach l in array types loop foreach r in array types loop
        execute format('create function public.compared(%s, %s) returns boolean %s', l, r, body);
        execute format('create function public.computed(%s, %s) returns %s %s', l, r, l, body);
        foreach o in array compare || compute loop
            if not exists (select from pg_operator where oprname = o and oprleft = l::regtype and oprright = r::regtype
                                                     and oprnamespace = 'pg_catalog'::regnamespace) then
                execute format('create operator public.%s (function = public.%s, leftarg = %s, rightarg = %s)',
                               o, case when o = any (compare) then 'compared' else 'computed' end, l, r);
            end if;
        end loop;
    end loop; end loop;
    foreach l in array array['bigint', 'integer', 'smallint', 'text', 'jsonb', 'float8', 'uuid'] loop
        execute format('create function public.unnest(%s[]) returns setof %s %s', l, l, body);
        execute format('create function public.cardinality(%s[]) returns integer %s', l, body);
        execute format('create function public.array_position(%s[], %s) returns integer %s', l, l, body);
    end loop;
    foreach l in array array['integer', 'smallint', 'varchar', 'bigint'] loop
        execute format('create function public.nextval(%s) returns bigint %s', l, body);
        execute format('create function public.left(%s, integer) returns text %s', l, body);
        execute format('create function public.to_timestamp(%s) returns timestamptz %s', l, body);
        execute format('create function public.pg_notify(text, %s) returns void %s', l, body);
        execute format('create function public.set_config(text, text, %s) returns text %s', l, body);
    end loop;
end $hostile$
"""
