/* Checks a JSON value against include/contract/v1.schema.json: the part of JSON Schema that it
 * uses. */
#ifndef SANDPIPER_TESTS_SCHEMA_H
#define SANDPIPER_TESTS_SCHEMA_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *schema_root;
static char schema_error[400]; /* the last violation */

static inline bool schema_fails(const char *path, const char *what)
{
    snprintf(schema_error, sizeof schema_error, "%.200s: %.150s", path, what);
    return false;
}

static bool schema_check(const json_t *schema, const json_t *value, const char *path);

static inline bool schema_has_type(const json_t *value, const char *type)
{
    return !strcmp(type, "object")    ? json_is_object(value)
           : !strcmp(type, "array")   ? json_is_array(value)
           : !strcmp(type, "string")  ? json_is_string(value)
           : !strcmp(type, "integer") ? json_is_integer(value)
           : !strcmp(type, "boolean") ? json_is_boolean(value)
                                      : !strcmp(type, "null") && json_is_null(value);
}

static inline bool schema_type(const json_t *types, const json_t *value)
{
    if (types == NULL)
        return true;
    if (json_is_string(types))
        return schema_has_type(value, json_string_value(types));
    for (size_t i = 0; i < json_array_size(types); i++)
        if (schema_has_type(value, json_string_value(json_array_get(types, i))))
            return true;
    return false;
}

static inline bool schema_object(const json_t *schema, const json_t *value, const char *path)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *more = json_object_get(schema, "additionalProperties");
    const json_t *required = json_object_get(schema, "required");
    const char *name;
    json_t *member;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i))))
            return schema_fails(path, json_string_value(json_array_get(required, i)));
    if ((json_int_t)json_object_size(value) <
        json_integer_value(json_object_get(schema, "minProperties")))
        return schema_fails(path, "too few members");
    json_object_foreach((json_t *)value, name, member)
    {
        char at[300];
        snprintf(at, sizeof at, "%s/%s", path, name);
        const json_t *sub = json_object_get(properties, name);
        if (sub == NULL && json_is_false(more))
            return schema_fails(at, "unknown member");
        if (sub == NULL)
            sub = more;
        if (json_is_object(sub) && !schema_check(sub, member, at))
            return false;
    }
    return true;
}

static inline int schema_count(const json_t *list, const json_t *value, const char *path)
{
    int good = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        good += schema_check(json_array_get(list, i), value, path);
    return good;
}

static inline bool schema_combined(const json_t *schema, const json_t *value, const char *path)
{
    const json_t *all = json_object_get(schema, "allOf"), *any = json_object_get(schema, "anyOf");
    const json_t *one = json_object_get(schema, "oneOf"), *not = json_object_get(schema, "not");
    const json_t *cond = json_object_get(schema, "if");
    for (size_t i = 0; i < json_array_size(all); i++)
        if (!schema_check(json_array_get(all, i), value, path))
            return false;
    if (any != NULL && schema_count(any, value, path) == 0)
        return false;
    if (one != NULL && schema_count(one, value, path) != 1)
        return schema_fails(path, "not exactly one of its forms");
    if (not != NULL && schema_check(not, value, path))
        return schema_fails(path, "has what it must not have");
    if (cond == NULL)
        return true;
    const json_t *branch =
        json_object_get(schema, schema_check(cond, value, path) ? "then" : "else");
    return branch == NULL || schema_check(branch, value, path);
}

static bool schema_check(const json_t *schema, const json_t *value, const char *path)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (ref != NULL) {
        const json_t *target = json_object_get(json_object_get(schema_root, "$defs"), ref + 8);
        if (target == NULL)
            return schema_fails(path, ref);
        if (!schema_check(target, value, path))
            return false;
    }
    const json_t *constant = json_object_get(schema, "const");
    const json_t *words = json_object_get(schema, "enum"),
                 *items = json_object_get(schema, "items");
    if (!schema_type(json_object_get(schema, "type"), value))
        return schema_fails(path, "wrong type");
    if (constant != NULL && !json_equal(constant, value))
        return schema_fails(path, "not the constant");
    bool found = words == NULL;
    for (size_t i = 0; i < json_array_size(words); i++)
        found = found || json_equal(json_array_get(words, i), value);
    if (!found)
        return schema_fails(path, "not one of the words");
    if (json_is_string(value) && (json_int_t)json_string_length(value) <
                                     json_integer_value(json_object_get(schema, "minLength")))
        return schema_fails(path, "empty");
    const json_t *least = json_object_get(schema, "minimum");
    if (json_is_number(value) && least != NULL &&
        json_number_value(value) < json_number_value(least))
        return schema_fails(path, "too small");
    for (size_t i = 0; items != NULL && i < json_array_size(value); i++)
        if (!schema_check(items, json_array_get(value, i), path))
            return false;
    if (json_is_object(value) && !schema_object(schema, value, path))
        return false;
    return schema_combined(schema, value, path);
}

/* value against $defs/<name>; false with schema_error. Tests run in the top folder of the tree. */
static inline bool schema_valid(const char *name, const json_t *value)
{
    if (schema_root == NULL)
        schema_root = json_load_file("include/contract/v1.schema.json", 0, NULL);
    if (schema_root == NULL)
        return schema_fails("include/contract/v1.schema.json", "cannot be read");
    return schema_check(json_object_get(json_object_get(schema_root, "$defs"), name), value, "");
}

#endif
